#include "durable/posix_cold_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "durable/posix_cold_file.h"
#include "durable/posix_cold_tree.h"

namespace unreft::durable {
namespace {

constexpr uint64_t kBlockBytes = 4096;

struct OpenedFile {
  UniqueFd file;
  uint64_t bytes = 0;
};

absl::StatusOr<OpenedFile> OpenToRead(const PosixColdRoot& root, std::string_view name) {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  ColdWay way;
  int error = way.Open(root, name, /*make=*/false);
  if (error == ENOTDIR) error = ENOENT;  // a file is in its way
  if (error != 0) return ColdFailure(root, error, "read", name);
  // A pipe would be waited for.
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  OpenedFile opened{UniqueFd(openat(way.holder(), way.leaf(), kFlags))};
  struct stat found{};
  if (!opened.file || fstat(opened.file.get(), &found) != 0) {
    return ColdFailure(root, errno, "read", name);
  }
  if (!S_ISREG(found.st_mode)) return ColdFailure(root, ENOENT, "read", name);
  opened.bytes = static_cast<uint64_t>(found.st_size);
  return opened;
}

absl::Status ReadAll(const PosixColdRoot& root, std::string_view name, const OpenedFile& opened,
                     uint64_t offset, std::span<std::byte> into) {
  uint64_t end = opened.bytes;
  if (offset > end || into.size() > end - offset) {
    return absl::OutOfRangeError(fmt::format("read '{}/{}': {} bytes at {} of a file of {} bytes",
                                             root.path, name, into.size(), offset, end));
  }
  while (!into.empty()) {
    const ssize_t count = Uninterrupted([&] {
      return pread(opened.file.get(), into.data(), into.size(), static_cast<off_t>(offset));
    });
    if (count < 0) return ColdFailure(root, errno, "read", name);
    if (count == 0) return ColdFailure(root, EIO, "read", name);  // it ended before its size
    offset += static_cast<uint64_t>(count);
    into = into.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

// Told of what is no directory and lies in the open directory `holder` as `leaf`; its name is from
// the root.
using OnFile = std::function<void(int holder, const std::string& leaf, const std::string& name,
                                  const struct stat& found)>;

// Closes a directory stream.
struct CloseDirectory {
  void operator()(DIR* stream) const { closedir(stream); }
};

// All entries but "." and ".."; 0, or errno.
int EntriesOf(DIR* stream, std::vector<std::string>& entries) {
  while (true) {
    errno = 0;
    const dirent* entry = readdir(stream);
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.emplace_back(name);
  }
}

// Visits all but directories below the directory, which is opened; `name` is its own ("" is the
// root). What disappears meanwhile is passed over; what could be no store's directory is not
// entered, and so the depth has a limit.
absl::Status Visit(const PosixColdRoot& root, UniqueFd directory, const std::string& name,
                   const OnFile& on_file) {
  const std::unique_ptr<DIR, CloseDirectory> stream(fdopendir(directory.get()));
  if (stream == nullptr) return ColdFailure(root, errno, "list", name);
  const int holder = directory.Release();  // the stream closes it
  std::vector<std::string> entries;
  if (const int error = EntriesOf(stream.get(), entries); error != 0) {
    return ColdFailure(root, error, "list", name);
  }
  for (const std::string& leaf : entries) {
    const std::string below = name.empty() ? leaf : name + "/" + leaf;
    struct stat found{};
    if (fstatat(holder, leaf.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT || errno == EACCES) continue;  // gone, or of somebody else
      return ColdFailure(root, errno, "look at", below);
    }
    if (!S_ISDIR(found.st_mode)) on_file(holder, leaf, below, found);
    if (!S_ISDIR(found.st_mode) || !CheckColdName(below).ok()) continue;
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    UniqueFd inner(openat(holder, leaf.c_str(), kFlags));
    // What this process may not read is of somebody else.
    if (!inner && (errno == ENOENT || errno == EACCES)) continue;
    if (!inner) return ColdFailure(root, errno, "list", below);
    absl::Status status = Visit(root, std::move(inner), below, on_file);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The same from the root, of a directory that may be absent.
absl::Status VisitBelow(const PosixColdRoot& root, std::string_view directory,
                        const OnFile& on_file) {
  if (absl::Status status = CheckColdDirectory(directory); !status.ok()) return status;
  ColdWay way;
  // The way to any file in it leads through it.
  const std::string any = directory.empty() ? "." : std::string(directory) + "/.";
  const int error = way.Open(root, any, /*make=*/false);
  if (error == ENOENT || error == ENOTDIR) return absl::OkStatus();
  if (error != 0) return ColdFailure(root, error, "list", directory);
  // Opened anew, as the root's own descriptor has one position for all threads.
  UniqueFd opened(openat(way.holder(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return ColdFailure(root, errno, "list", directory);
  return Visit(root, std::move(opened), std::string(directory), on_file);
}

absl::Status CheckWritable(const std::string& path, int directory) {
  if (faccessat(directory, ".", R_OK | W_OK | X_OK, AT_EACCESS) == 0) return absl::OkStatus();
  const int error = errno;
  if (error == EROFS) {
    return absl::PermissionDeniedError(fmt::format(
        "cold storage '{}' is on a read-only file system: mount it for reading and writing", path));
  }
  struct stat found{};
  if (error != EACCES || fstat(directory, &found) != 0) {
    return absl::ErrnoToStatus(error, fmt::format("use cold storage '{}'", path));
  }
  return absl::PermissionDeniedError(fmt::format(
      "cold storage '{}' belongs to user {} with mode {:04o}: needed one that user {} may read, "
      "write and enter; change its owner or mode",
      path, found.st_uid, found.st_mode & 07777, geteuid()));
}

}  // namespace

PosixColdStore::PosixColdStore(std::shared_ptr<const PosixColdRoot> root)
    : root_(std::move(root)) {}

PosixColdStore::~PosixColdStore() = default;

absl::StatusOr<std::unique_ptr<PosixColdStore>> PosixColdStore::Open(std::string root,
                                                                     PosixColdOptions options) {
  if (!root.starts_with('/')) {
    return absl::InvalidArgumentError(
        fmt::format("cold storage '{}' is not an absolute path: let it begin with '/'", root));
  }
  if (options.buffer_bytes == 0 || options.buffer_bytes % kBlockBytes != 0) {
    return absl::InvalidArgumentError(
        fmt::format("cold storage '{}': a buffer of {} bytes; needed a multiple of {}", root,
                    options.buffer_bytes, kBlockBytes));
  }
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  UniqueFd directory(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    const int error = errno;
    if (error == ENOENT) {
      return absl::NotFoundError(fmt::format(
          "cold storage '{}' does not exist: mount it on this node, or make the directory", root));
    }
    if (error == ENOTDIR) {
      return absl::FailedPreconditionError(
          fmt::format("cold storage '{}' is not a directory: name one", root));
    }
    return absl::ErrnoToStatus(error, fmt::format("open cold storage '{}'", root));
  }
  if (options.writes) {
    if (absl::Status status = CheckWritable(root, directory.get()); !status.ok()) return status;
  }
  auto opened = std::make_shared<PosixColdRoot>();
  opened->path = std::move(root);
  opened->options = std::move(options);
  opened->directory = std::move(directory);
  opened->has_proc = access("/proc/self/fd", X_OK) == 0;
  return std::unique_ptr<PosixColdStore>(new PosixColdStore(std::move(opened)));
}

absl::StatusOr<std::unique_ptr<ColdFile>> PosixColdStore::Create(std::string_view name) {
  return BeginPosixColdFile(root_, name, root_->options.direct, root_->options.buffer_bytes);
}

absl::Status PosixColdStore::Put(std::string_view name, std::string_view bytes) {
  // Through the page cache, as it is small.
  const uint64_t blocks = std::max<uint64_t>(1, (bytes.size() + kBlockBytes - 1) / kBlockBytes);
  auto file = BeginPosixColdFile(root_, name, /*direct=*/false,
                                 std::min(blocks * kBlockBytes, root_->options.buffer_bytes));
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Append(std::as_bytes(std::span(bytes)));
  return status.ok() ? (*file)->Finish() : status;
}

absl::StatusOr<std::string> PosixColdStore::Get(std::string_view name, uint64_t bytes_max) {
  const auto opened = OpenToRead(*root_, name);
  if (!opened.ok()) return opened.status();
  if (opened->bytes > bytes_max) {
    return absl::ResourceExhaustedError(fmt::format(
        "read '{}/{}': it has {} bytes, at most {} were expected: is it what it should be?",
        root_->path, name, opened->bytes, bytes_max));
  }
  std::string bytes(opened->bytes, '\0');
  absl::Status status = ReadAll(*root_, name, *opened, 0, std::as_writable_bytes(std::span(bytes)));
  if (!status.ok()) return status;
  return bytes;
}

absl::Status PosixColdStore::Read(std::string_view name, uint64_t offset,
                                  std::span<std::byte> into) {
  const auto opened = OpenToRead(*root_, name);
  if (!opened.ok()) return opened.status();
  return ReadAll(*root_, name, *opened, offset, into);
}

absl::StatusOr<std::vector<ColdEntry>> PosixColdStore::List(std::string_view directory) {
  std::vector<ColdEntry> entries;
  absl::Status status =
      VisitBelow(*root_, directory,
                 [&](int, const std::string&, const std::string& name, const struct stat& found) {
                   if (!S_ISREG(found.st_mode) || !CheckColdName(name).ok()) return;
                   entries.push_back({name, static_cast<uint64_t>(found.st_size)});
                 });
  if (!status.ok()) return status;
  std::sort(entries.begin(), entries.end(),
            [](const ColdEntry& a, const ColdEntry& b) { return a.name < b.name; });
  return entries;
}

absl::Status PosixColdStore::Remove(std::string_view name) {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  ColdWay way;
  int error = way.Open(*root_, name, /*make=*/false);
  struct stat found{};
  if (error == ENOTDIR) error = ENOENT;  // a file is in its way
  if (error == 0 && fstatat(way.holder(), way.leaf(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    error = errno;
  }
  if (error == 0 && S_ISLNK(found.st_mode)) error = ELOOP;
  if (error == 0 && !S_ISREG(found.st_mode)) error = ENOENT;
  if (error == 0 && unlinkat(way.holder(), way.leaf(), 0) != 0) error = errno;
  if (error == 0) error = way.Sync(*root_);
  if (error != 0) return ColdFailure(*root_, error, "remove", name);
  way.RemoveEmpty();
  return absl::OkStatus();
}

absl::StatusOr<std::string> PosixColdStore::Anything(std::string_view directory) {
  std::string any;
  absl::Status status = VisitBelow(
      *root_, directory,
      [&](int, const std::string& leaf, const std::string& name, const struct stat& found) {
        const bool is_unfinished =
            S_ISREG(found.st_mode) && leaf.starts_with(kColdUnfinishedPrefix);
        if (!is_unfinished && any.empty()) any = name;
      });
  if (!status.ok()) return status;
  return any;
}

absl::StatusOr<uint64_t> PosixColdStore::RemoveLeftovers(
    std::string_view directory, std::chrono::system_clock::time_point before) {
  const auto before_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(before.time_since_epoch());
  std::vector<std::string> removed;
  absl::Status failed;
  absl::Status status = VisitBelow(
      *root_, directory,
      [&](int holder, const std::string& leaf, const std::string& name, const struct stat& found) {
        const auto touched = std::chrono::seconds(found.st_mtim.tv_sec) +
                             std::chrono::nanoseconds(found.st_mtim.tv_nsec);
        const bool is_unfinished =
            S_ISREG(found.st_mode) && leaf.starts_with(kColdUnfinishedPrefix);
        if (!is_unfinished || touched >= before_ns) return;
        if (unlinkat(holder, leaf.c_str(), 0) == 0) {
          removed.push_back(name);
        } else if (errno != ENOENT && failed.ok()) {
          failed = ColdFailure(*root_, errno, "remove", name);
        }
      });
  for (const std::string& name : removed) {
    ColdWay way;
    if (way.Open(*root_, name, /*make=*/false) == 0) way.RemoveEmpty();
  }
  if (!status.ok()) return status;
  if (!failed.ok()) return failed;
  return removed.size();
}

std::string PosixColdStore::Describe() const { return root_->path; }

}  // namespace unreft::durable
