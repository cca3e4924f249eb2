#include "durable/posix_cold_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace unreft::durable {

PosixCalls::PosixCalls()
    : open([](int directory, const char* name, int flags, mode_t mode) {
        return openat(directory, name, flags, mode);
      }),
      set_direct([](int file) { return fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_DIRECT); }),
      pwrite(::pwrite),
      fdatasync(::fdatasync),
      fsync(::fsync),
      rename([](int directory, const char* from, const char* to) {
        return renameat2(directory, from, directory, to, RENAME_NOREPLACE);
      }) {}

namespace {

bool IsLink(int directory, const char* part) {
  struct stat found {};
  return fstatat(directory, part, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
}

}  // namespace

absl::Status ColdFailure(const PosixColdRoot& root, int error, std::string_view doing,
                         std::string_view name) {
  const std::string path =
      name.empty() ? fmt::format("'{}'", root.path) : fmt::format("'{}/{}'", root.path, name);
  const auto told = [&](std::string_view what_to_do) {
    return fmt::format("{} {}: {}{}", doing, path, strerror(error), what_to_do);
  };
  switch (error) {
    case EEXIST:
      return absl::AlreadyExistsError(
          told(", and nothing is ever replaced: choose another name, or remove what is there"));
    case ENOENT:
      return absl::NotFoundError(told(""));
    case ELOOP:
    case ENOTDIR:
      return absl::FailedPreconditionError(
          told(fmt::format(": a part of it is a symbolic link, which is not followed below '{}', "
                           "or a file: take that away, or choose another name",
                           root.path)));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          told(fmt::format(": user {} needs the right to; change the owner or mode, or mount it "
                           "for reading and writing",
                           geteuid())));
    case ENOSPC:
    case EDQUOT: {
      struct statvfs space {};
      std::string free = "unknown";
      if (fstatvfs(root.directory.get(), &space) == 0) {
        free = fmt::format("{} bytes and {} inodes", uint64_t{space.f_bavail} * space.f_frsize,
                           space.f_favail);
      }
      return absl::ResourceExhaustedError(told(
          fmt::format("; free in '{}': {}: remove what is there, or raise the quota or size of the "
                      "file system",
                      root.path, free)));
    }
    case EIO:
    case ENXIO:
    case ENODEV:
    case ESTALE:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EREMOTEIO:
      return absl::UnavailableError(
          told(fmt::format(": the storage below '{}' fails; see to its mount and the kernel's log, "
                           "then try again",
                           root.path)));
    default:
      return absl::ErrnoToStatus(error, fmt::format("{} {}", doing, path));
  }
}

int ColdWay::Open(const PosixColdRoot& root, std::string_view name, bool make) {
  root_ = root.directory.get();
  directories_.clear();
  names_.clear();
  while (true) {
    const size_t slash = name.find('/');
    leaf_ = name.substr(0, slash);
    if (slash == std::string_view::npos) return 0;
    if (const int error = Enter(leaf_.c_str(), make); error != 0) return error;
    names_.push_back(leaf_);
    name.remove_prefix(slash + 1);
  }
}

int ColdWay::Sync(const PosixColdRoot& root) const {
  const auto& sync = root.options.calls.fsync;
  for (size_t i = 0; i <= directories_.size(); ++i) {
    const int directory = i == 0 ? root_ : directories_[i - 1].get();
    // A file system that cannot says EINVAL: it needs none.
    if (Uninterrupted([&] { return sync(directory); }) != 0 && errno != EINVAL) return errno;
  }
  return 0;
}

void ColdWay::RemoveEmpty() const {
  for (size_t i = names_.size(); i > 0; --i) {
    const int parent = i == 1 ? root_ : directories_[i - 2].get();
    if (unlinkat(parent, names_[i - 1].c_str(), AT_REMOVEDIR) != 0) return;
  }
}

int ColdWay::Enter(const char* part, bool make) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const int parent = holder();
  UniqueFd opened(openat(parent, part, kFlags));
  if (!opened && errno == ENOENT && make) {
    if (mkdirat(parent, part, 0777) != 0 && errno != EEXIST) return errno;
    opened = UniqueFd(openat(parent, part, kFlags));
  }
  if (!opened) {
    const int error = errno;
    return error == ENOTDIR && IsLink(parent, part) ? ELOOP : error;
  }
  directories_.push_back(std::move(opened));
  return 0;
}

}  // namespace unreft::durable
