#include "base/host_memory.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

namespace unreft {
namespace {

// The file names of one cgroup version's memory controller.
struct CgroupFiles {
  const char* limit;
  const char* used;
  absl::string_view droppable;  // key in memory.stat: page cache that goes first
};
constexpr CgroupFiles kCgroupV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};
constexpr CgroupFiles kCgroupV2 = {"memory.max", "memory.current", "inactive_file"};

// The number at the start of a one-line file; nothing for "max" or an absent file.
std::optional<uint64_t> ReadNumber(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;
  return value;
}

// The number that follows `key` at the start of a line.
std::optional<uint64_t> ReadKey(const std::filesystem::path& path, absl::string_view key,
                                int base = 10) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 2 || words[0] != key) continue;
    if (base == 16) {
      uint64_t bits = 0;
      if (absl::SimpleHexAtoi(words[1], &bits)) return bits;
      return std::nullopt;
    }
    uint64_t value = 0;
    if (absl::SimpleAtoi(words[1], &value)) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

// What one cgroup directory leaves; UINT64_MAX without a limit there.
uint64_t LeftInDirectory(const std::filesystem::path& directory, const CgroupFiles& files) {
  const auto limit = ReadNumber(directory / files.limit);
  const auto used = ReadNumber(directory / files.used);
  if (!limit || !used) return UINT64_MAX;
  const uint64_t droppable = ReadKey(directory / "memory.stat", files.droppable).value_or(0);
  const uint64_t held = *used - std::min(*used, droppable);
  return *limit - std::min(*limit, held);
}

// The least that any level from `base` down to `base`/`path` leaves. Levels that are not visible
// (a container's own cgroup root) are passed over.
uint64_t LeftInHierarchy(const std::filesystem::path& base, absl::string_view path,
                         const CgroupFiles& files) {
  std::filesystem::path directory = base;
  uint64_t left = LeftInDirectory(directory, files);
  for (absl::string_view level : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    directory /= std::string(level);
    left = std::min(left, LeftInDirectory(directory, files));
  }
  return left;
}

uint64_t LeftInCgroups(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  uint64_t left = UINT64_MAX;
  std::string line;
  while (std::getline(file, line)) {
    // "hierarchy:controllers:path"; version 2 has no controllers.
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      left = std::min(left, LeftInHierarchy(root + "/sys/fs/cgroup", parts[2], kCgroupV2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      left = std::min(left, LeftInHierarchy(root + "/sys/fs/cgroup/memory", parts[2], kCgroupV1));
    }
  }
  return left;
}

bool LockingIsUnlimited() {
  constexpr uint64_t kCapIpcLock = uint64_t{1} << 14;
  constexpr const char* kFirstUserNamespace = "user:[4026531837]";
  const uint64_t effective = ReadKey("/proc/self/status", "CapEff:", 16).value_or(0);
  if ((effective & kCapIpcLock) == 0) return false;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/ns/user", error) == kFirstUserNamespace;
}

}  // namespace

uint64_t RamAvailableBytes(const std::string& root) {
  const auto available_kib = ReadKey(root + "/proc/meminfo", "MemAvailable:");
  const uint64_t host = available_kib ? *available_kib * 1024 : UINT64_MAX;
  return std::min(host, LeftInCgroups(root));
}

uint64_t MemlockLimitBytes() {
  if (LockingIsUnlimited()) return UINT64_MAX;
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

uint64_t FileSystemFreeBytes(const std::string& path) {
  struct statvfs info{};
  if (statvfs(path.c_str(), &info) != 0) return UINT64_MAX;
  if (info.f_blocks == 0) return UINT64_MAX;  // a tmpfs mounted without a size
  return uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace unreft
