#include "tools/cli/place.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/rocks_record_store.h"
#include "base/run_dir.h"
#include "base/run_owner.h"
#include "base/segment_store.h"

namespace unreft::cli {
namespace {

constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
static_assert(sizeof(kPeersSocket) <= sizeof("unreftd.sock"), "Resolve looks at that one alone");

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

absl::Status RemoveRunFiles(const Place& place) {
  if (absl::Status status = RocksRecordStore::Destroy(place.records()); !status.ok()) return status;
  return RemoveFiles(place.run_dir, {"unreftd.sock", kPeersSocket, kRunOwnerFile, "unreftd.log",
                                     kSupervisorLock, kDaemonLock});
}

absl::Status RemoveFiles(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", directory, name);
    if (std::remove(path.c_str()) != 0 && errno != ENOENT) {
      return absl::ErrnoToStatus(errno, "remove " + path);
    }
  }
  const bool is_gone = std::remove(directory.c_str()) == 0 || errno == ENOENT;
  if (is_gone || errno == ENOTEMPTY || errno == EEXIST) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "remove " + directory);
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
