#include "tools/cli/place.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/run_dir.h"
#include "base/segment_store.h"

namespace unreft::cli {
namespace {

constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;

// Makes one directory; what is there already must be ours alone, or another user could replace
// the socket in it.
absl::Status MakePrivate(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) return absl::ErrnoToStatus(errno, "make directory " + path);
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, "look at " + path);
  if (!S_ISDIR(found.st_mode)) return absl::AlreadyExistsError(path + " is not a directory");
  if (found.st_uid != getuid() || (found.st_mode & 0022) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "{} belongs to user {} with mode {:04o}; it must be user {}'s and not writable by others",
        path, found.st_uid, found.st_mode & 07777, getuid()));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Place::Name() const { return fmt::format("job {}, node {}", job, node); }

absl::Status Resolve(Place& place) {
  if (absl::Status status = CheckJobName(place.job); !status.ok()) return status;
  if (place.run_dir.empty()) place.run_dir = DefaultRunDir(place.job, place.node);
  std::error_code error;
  const auto absolute = std::filesystem::absolute(place.run_dir, error);
  if (error) return absl::InvalidArgumentError(fmt::format("run directory: {}", error.message()));
  place.run_dir = absolute.lexically_normal().string();
  if (place.run_dir.size() > 1 && place.run_dir.back() == '/') place.run_dir.pop_back();
  if (place.socket().size() > kSocketPathMax) {
    return absl::InvalidArgumentError(
        fmt::format("{}: a socket's path has at most {} bytes, this one {}; choose a shorter "
                    "--run-dir",
                    place.socket(), kSocketPathMax, place.socket().size()));
  }
  return absl::OkStatus();
}

absl::Status MakeRunDir(const Place& place) {
  const std::filesystem::path path = place.run_dir;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path().parent_path(), error);
  if (!std::filesystem::exists(path.parent_path())) {
    if (absl::Status status = MakePrivate(path.parent_path()); !status.ok()) return status;
  }
  return MakePrivate(path);
}

std::vector<std::pair<std::string, std::string>> TrainerEnvironment(const Place& place) {
  return {{"UNREFT_JOB", place.job},
          {"UNREFT_NODE", std::to_string(place.node)},
          {"UNREFT_RUN_DIR", place.run_dir},
          {"UNREFT_SOCKET", place.socket()}};
}

std::string ShellQuote(const std::string& text) {
  constexpr char kPlain[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=,@+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string SelfPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string SiblingPath(const std::string& name) {
  return (std::filesystem::path(SelfPath()).parent_path() / name).string();
}

}  // namespace unreft::cli
