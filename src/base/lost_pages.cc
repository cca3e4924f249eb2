#include "base/lost_pages.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace unreft {
namespace {

constexpr size_t kMappingsMax = 8192;

// What the handler reads is atomic: it runs on any thread, at any time.
struct Mapping {
  std::atomic<uintptr_t> begin = 0;  // 0 = none
  std::atomic<uintptr_t> end = 0;
  std::atomic<uint64_t> offset = 0;
  std::atomic<int> fd = -1;
  std::atomic<uint64_t> bytes_found = 0;
  std::atomic<bool> is_lost = false;
  bool is_told = false;  // this and the name are guarded by names_mutex
  std::string name;
};

// The signal knows nothing of objects. Initialised before main, never destroyed.
std::array<Mapping, kMappingsMax>& Mappings() {
  static auto& mappings = *new std::array<Mapping, kMappingsMax>;  // NOLINT: see above
  return mappings;
}

std::atomic<Mapping*> known_mappings = nullptr;  // null: not asked for
std::atomic<size_t> mappings_used = 0;           // the entries from here on were never used
std::atomic<int> event_fd = -1;
std::atomic<uintptr_t> page_bytes = 4096;
std::mutex names_mutex;

// Async-signal-safe: system calls and atomics alone. Whether the access can be repeated.
bool Replace(Mapping& mapping, uintptr_t address) {
  const uintptr_t begin = mapping.begin.load();
  const uintptr_t end = mapping.end.load();
  if (begin == 0 || address < begin || address >= end) return false;
  struct stat info{};
  const bool is_known = fstat(mapping.fd.load(), &info) == 0;
  const auto found = is_known ? static_cast<uint64_t>(info.st_size) : 0;
  const uintptr_t page = address / page_bytes * page_bytes;
  // Beyond the end nothing is there any more; before it, one page could not be had.
  const bool is_beyond = mapping.offset.load() + (page - begin) >= found;
  const size_t bytes = is_beyond ? end - page : page_bytes.load();
  void* const made = mmap(reinterpret_cast<void*>(page), bytes, PROT_READ | PROT_WRITE,
                          MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  mapping.bytes_found = found;
  mapping.is_lost = true;
  const uint64_t one = 1;
  (void)!write(event_fd.load(), &one, sizeof(one));
  return true;
}

void OnBusError(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Mapping* const mappings = known_mappings.load();
  for (size_t i = 0; i < mappings_used.load(); ++i) {
    if (!Replace(mappings[i], address)) continue;
    errno = saved_errno;
    return;
  }
  (void)std::signal(SIGBUS, SIG_DFL);  // the access is repeated, and ends the process
}

absl::Status Describe(const Mapping& mapping) {
  const uint64_t needed = mapping.offset + (mapping.end - mapping.begin);
  return absl::DataLossError(
      fmt::format("segment {}: needs {} bytes, its file has {}: another process has truncated it, "
                  "or there was no memory for a page; what is gone reads as zeros here",
                  mapping.name, needed, mapping.bytes_found.load()));
}

}  // namespace

absl::Status SurviveLostPages() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "make an eventfd for SIGBUS");
  event_fd = fd;
  known_mappings = Mappings().data();
  struct sigaction action{};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, nullptr) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "handle SIGBUS");
}

int LostPagesDescriptor() { return event_fd.load(); }

std::vector<LostPages> TakeLostPages() {
  uint64_t count = 0;
  (void)!read(event_fd.load(), &count, sizeof(count));
  std::vector<LostPages> lost;
  const std::lock_guard lock(names_mutex);
  for (size_t i = 0; i < mappings_used; ++i) {
    Mapping& mapping = Mappings()[i];
    if (mapping.begin == 0 || !mapping.is_lost || mapping.is_told) continue;
    mapping.is_told = true;
    lost.push_back({mapping.name, Describe(mapping)});
  }
  return lost;
}

absl::Status CheckNoPagesLost(std::span<const std::byte> mapped) {
  if (known_mappings == nullptr) return absl::OkStatus();
  const auto begin = reinterpret_cast<uintptr_t>(mapped.data());
  const std::lock_guard lock(names_mutex);
  for (size_t i = 0; i < mappings_used; ++i) {
    const Mapping& mapping = Mappings()[i];
    if (mapping.begin == begin && mapping.is_lost) return Describe(mapping);
  }
  return absl::OkStatus();
}

KnownMapping::KnownMapping(const std::string& segment, std::span<const std::byte> bytes, int fd,
                           size_t offset) {
  if (known_mappings == nullptr) return;
  const std::lock_guard lock(names_mutex);
  for (size_t i = 0; i < kMappingsMax; ++i) {
    Mapping& mapping = Mappings()[i];
    if (mapping.begin != 0) continue;
    mapping.name = segment;
    mapping.is_told = false;
    mapping.is_lost = false;
    mapping.fd = fd;
    mapping.offset = offset;
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    mapping.end = begin + bytes.size();
    mapping.begin = begin;  // last: from now on the handler knows it
    if (i >= mappings_used) mappings_used = i + 1;
    entry_ = static_cast<int>(i);
    return;
  }
}

void KnownMapping::Forget() {
  if (entry_ < 0) return;
  const std::lock_guard lock(names_mutex);
  Mappings()[static_cast<size_t>(entry_)].begin = 0;
  entry_ = -1;
}

}  // namespace unreft
