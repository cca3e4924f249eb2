#include "snapshot/cuda_pins.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unreft::snapshot {
namespace {

constexpr uintptr_t kPage = 4096;

std::string MemlockText() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} bytes", limit.rlim_cur);
}

// What could not be unregistered stays mapped until the process ends: CUDA would take whatever the
// process maps there later for the pages of before.
void KeepMapped(std::shared_ptr<const void> owner) {
  static std::mutex mutex;
  static std::list<std::shared_ptr<const void>> kept;
  std::lock_guard lock(mutex);
  kept.push_back(std::move(owner));
}

}  // namespace

// Outlives its CudaPins when somebody still holds memory.
class CudaPins::State : public std::enable_shared_from_this<State> {
 public:
  State(std::shared_ptr<const CudaDevice> device, size_t chunk_bytes)
      : device_(std::move(device)), chunk_bytes_((chunk_bytes + kPage - 1) / kPage * kPage) {}

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  void End();

  std::shared_ptr<void> Pin(std::shared_ptr<const void> owner, std::span<std::byte> bytes);
  CudaPins::Run Find(const std::byte* at) const;
  Progress progress() const;

 private:
  struct Region {
    std::byte* begin = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
    std::vector<bool> pinned;  // by chunk
    size_t next = 0;           // the first chunk that was not tried
    bool released = false;
  };
  using RegionPtr = std::shared_ptr<Region>;

  std::span<std::byte> Chunk(const Region& region, size_t index) const {
    const uint64_t begin = index * chunk_bytes_;
    return {region.begin + begin, std::min<uint64_t>(chunk_bytes_, region.bytes - begin)};
  }
  void Release(const RegionPtr& region);
  void Run();
  RegionPtr ReleasedLocked();
  RegionPtr UnfinishedLocked() const;
  void RegisterNext(Region& region, std::unique_lock<std::mutex>& lock);
  bool Unregister(const Region& region) const;
  void NoteRefusalLocked(Region& region, cudaError_t error, const absl::Status& status);

  const std::shared_ptr<const CudaDevice> device_;
  const uint64_t chunk_bytes_;

  mutable std::mutex mutex_;  // covers all below
  std::condition_variable changed_;
  std::list<RegionPtr> regions_;
  absl::Status refused_;
  bool working_ = false;
  bool ending_ = false;
  bool ended_ = false;

  std::thread thread_;
};

std::shared_ptr<void> CudaPins::State::Pin(std::shared_ptr<const void> owner,
                                           std::span<std::byte> bytes) {
  auto region = std::make_shared<Region>();
  region->begin = bytes.data();
  region->bytes = bytes.size();
  region->owner = std::move(owner);
  const bool at_page = reinterpret_cast<uintptr_t>(bytes.data()) % kPage == 0;
  if (at_page) region->pinned.resize((bytes.size() + chunk_bytes_ - 1) / chunk_bytes_);
  {
    std::lock_guard lock(mutex_);
    regions_.push_back(region);
    if (!at_page) refused_ = absl::InternalError("memory that does not begin at a page");
  }
  changed_.notify_all();
  Region* const raw = region.get();
  return std::shared_ptr<void>(raw, [state = shared_from_this(), region = std::move(region)](
                                        void*) mutable { state->Release(region); });
}

void CudaPins::State::Release(const RegionPtr& region) {
  std::shared_ptr<const void> owner;
  {
    std::lock_guard lock(mutex_);
    region->released = true;
    if (ended_) owner = std::move(region->owner);  // nobody else lets go of it
  }
  changed_.notify_all();
}

CudaPins::Run CudaPins::State::Find(const std::byte* at) const {
  const auto address = reinterpret_cast<uintptr_t>(at);
  std::lock_guard lock(mutex_);
  for (const RegionPtr& region : regions_) {
    const auto begin = reinterpret_cast<uintptr_t>(region->begin);
    if (address < begin || address >= begin + region->bytes || region->pinned.empty()) continue;
    const size_t index = (address - begin) / chunk_bytes_;
    const std::span<std::byte> chunk = Chunk(*region, index);
    return {region->pinned[index], reinterpret_cast<uintptr_t>(chunk.data()) + chunk.size()};
  }
  return {};
}

CudaPins::Progress CudaPins::State::progress() const {
  std::lock_guard lock(mutex_);
  Progress progress{.busy = working_ || UnfinishedLocked() != nullptr, .refused = refused_};
  for (const RegionPtr& region : regions_) {
    progress.busy |= region->released;
    progress.bytes += region->bytes;
    for (size_t i = 0; i < region->pinned.size(); ++i) {
      if (region->pinned[i]) progress.pinned += Chunk(*region, i).size();
    }
  }
  return progress;
}

// --- The thread ---

void CudaPins::State::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    working_ = false;
    changed_.wait(lock, [this] {
      return ending_ || UnfinishedLocked() != nullptr ||
             std::any_of(regions_.begin(), regions_.end(),
                         [](const RegionPtr& region) { return region->released; });
    });
    working_ = true;
    if (RegionPtr released = ReleasedLocked()) {
      lock.unlock();
      if (!Unregister(*released)) KeepMapped(released->owner);
      released->owner.reset();  // here, where unmapping holds up nobody
      lock.lock();
    } else if (ending_) {
      break;
    } else {
      RegisterNext(*UnfinishedLocked(), lock);
    }
  }
  // What is still held is no longer copied to.
  const std::list<RegionPtr> left = regions_;
  lock.unlock();
  for (const RegionPtr& region : left) {
    if (!Unregister(*region)) KeepMapped(region->owner);
  }
}

CudaPins::State::RegionPtr CudaPins::State::ReleasedLocked() {
  for (auto it = regions_.begin(); it != regions_.end(); ++it) {
    if (!(*it)->released) continue;
    RegionPtr region = *it;
    regions_.erase(it);
    return region;
  }
  return nullptr;
}

CudaPins::State::RegionPtr CudaPins::State::UnfinishedLocked() const {
  for (const RegionPtr& region : regions_) {
    if (!region->released && region->next < region->pinned.size()) return region;
  }
  return nullptr;
}

void CudaPins::State::RegisterNext(Region& region, std::unique_lock<std::mutex>& lock) {
  const size_t index = region.next++;
  const std::span<std::byte> chunk = Chunk(region, index);
  lock.unlock();
  const CudaScope scope(*device_);
  absl::Status status = scope.status();
  cudaError_t error = cudaSuccess;
  if (status.ok()) {
    error = device_->api().cudaHostRegister(chunk.data(), chunk.size(), cudaHostRegisterDefault);
    status = scope.Check(
        error, fmt::format("pinning {} bytes, memlock limit {}", chunk.size(), MemlockText()));
  }
  lock.lock();
  if (status.ok()) {
    region.pinned[index] = true;
  } else {
    NoteRefusalLocked(region, error, status);
  }
}

// Memory that somebody else registered may be other pages by now, so it counts as not pinned. Any
// other reason holds for the rest as well.
void CudaPins::State::NoteRefusalLocked(Region& region, cudaError_t error,
                                        const absl::Status& status) {
  refused_ = status;
  if (error != cudaErrorHostMemoryAlreadyRegistered) region.next = region.pinned.size();
}

// False when memory stays registered: it may never be unmapped then.
bool CudaPins::State::Unregister(const Region& region) const {
  bool gone = true;
  for (size_t i = 0; i < region.pinned.size(); ++i) {
    if (!region.pinned[i]) continue;
    const CudaScope scope(*device_);
    if (!scope.status().ok()) return true;  // nothing copies in a dead context
    const cudaError_t error = device_->api().cudaHostUnregister(Chunk(region, i).data());
    gone &= scope.Check(error, "unpinning").ok();
  }
  return gone;
}

void CudaPins::State::End() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  std::list<RegionPtr> left;
  std::lock_guard lock(mutex_);
  ended_ = true;
  left.swap(regions_);
  // Those released since then are let go here, the others by who holds them.
  for (const RegionPtr& region : left) {
    if (region->released) region->owner.reset();
  }
}

// --- ---

CudaPins::CudaPins(std::shared_ptr<const CudaDevice> device, size_t chunk_bytes)
    : state_(std::make_shared<State>(std::move(device), chunk_bytes)) {
  state_->Start();
}

CudaPins::~CudaPins() { state_->End(); }

std::shared_ptr<void> CudaPins::Pin(std::shared_ptr<const void> owner, std::span<std::byte> bytes) {
  return state_->Pin(std::move(owner), bytes);
}

CudaPins::Run CudaPins::Find(const std::byte* at) const { return state_->Find(at); }

CudaPins::Progress CudaPins::progress() const { return state_->progress(); }

}  // namespace unreft::snapshot
