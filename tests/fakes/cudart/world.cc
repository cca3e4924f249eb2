#include "tests/fakes/cudart/world.h"

#include <chrono>
#include <utility>

namespace unreft::fake_cudart {

ThreadState& Self() {
  static thread_local ThreadState state;
  return state;
}

Stream::Stream(unsigned stream_flags) : flags(stream_flags), thread_([this] { Run(); }) {}

Stream::~Stream() {
  for (auto& answer : Drop(cudaErrorContextIsDestroyed)) answer(cudaErrorContextIsDestroyed);
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Push(std::function<void()> run, std::function<void(cudaError_t)> always) {
  cudaError_t dropped = cudaSuccess;
  {
    std::lock_guard lock(mutex_);
    dropped = dropped_;
    if (dropped == cudaSuccess) queue_.push_back({std::move(run), std::move(always)});
  }
  changed_.notify_all();
  if (dropped != cudaSuccess && always) always(dropped);
}

std::vector<std::function<void(cudaError_t)>> Stream::Drop(cudaError_t why) {
  std::vector<std::function<void(cudaError_t)>> answers;
  std::lock_guard lock(mutex_);
  for (Item& item : queue_) {
    if (item.always) answers.push_back(std::move(item.always));
  }
  queue_.clear();
  dropped_ = why;
  return answers;
}

void Stream::Delay(unsigned microseconds_max, unsigned seed) {
  std::lock_guard lock(mutex_);
  delay_max_ = microseconds_max;
  random_.seed(seed);
}

void Stream::Pause(std::unique_lock<std::mutex>& lock) {
  if (delay_max_ == 0) return;
  const auto pause = std::chrono::microseconds(random_() % (delay_max_ + 1));
  lock.unlock();
  std::this_thread::sleep_for(pause);
  lock.lock();
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    Pause(lock);
    lock.unlock();
    if (item.run) item.run();
    if (item.always) item.always(cudaSuccess);
    item = {};  // before the lock: what it holds may be the last of its kind
    lock.lock();
  }
}

// Never destroyed: threads of the process may call until its end.
World& World::Get() {
  static World* const world = [] {
    auto* made = new World;
    made->Restart(1);
    return made;
  }();
  return *world;
}

void World::Restart(int count) {
  std::map<Stream*, std::unique_ptr<Stream>> gone;
  {
    std::lock_guard lock(mutex);
    gone.swap(streams);
    events.clear();
    default_streams.clear();
    device_memory.clear();
    pinned_memory.clear();
    blocks.clear();
    sticky.clear();
    faults.clear();
    calls.clear();
    violations.clear();
    pinned_max = SIZE_MAX;
    registered_bytes = 0;
    delay_max = 0;
    libraries = 0;
    flip_at = 0;
    wrong_kernel = 0;
    devices = count;
    driver = 13000;
    for (int device = 0; device < count; ++device) lives[device] = ++last_life;
  }
  Self() = ThreadState{};
  std::lock_guard lock(hold_mutex);
  held = false;
  hold_changed.notify_all();
}

void World::WaitUntilReleased() {
  std::unique_lock lock(hold_mutex);
  hold_changed.wait(lock, [this] { return !held; });
}

cudaError_t World::Fail(cudaError_t error) {
  Self().last_error = error;
  return error;
}

cudaError_t World::FailLocked(cudaError_t error) { return Fail(error); }

cudaError_t World::Enter(const char* function) {
  std::lock_guard lock(mutex);
  if (!Self().exempt) ++calls[function];
  if (driver < 13000) return FailLocked(cudaErrorInsufficientDriver);
  if (devices == 0) return FailLocked(cudaErrorNoDevice);
  if (auto it = sticky.find(Self().device); it != sticky.end()) return FailLocked(it->second);
  auto it = faults.find(function);
  if (it == faults.end() || Self().exempt) return cudaSuccess;
  Fault& fault = it->second;
  if (fault.always != cudaSuccess) return FailLocked(fault.always);
  if (fault.in_calls > 0 && --fault.in_calls == 0) return FailLocked(fault.error);
  return cudaSuccess;
}

cudaError_t World::EnterUnsafe(const char* function) {
  if (cudaError_t error = Enter(function); error != cudaSuccess) return error;
  if (Self().capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  std::lock_guard lock(mutex);
  for (auto& [stream, owner] : streams) {
    if (!stream->capturing || stream->capture_mode == cudaStreamCaptureModeRelaxed) continue;
    const bool forbidden = stream->capture_mode == cudaStreamCaptureModeGlobal ||
                           stream->capturer == std::this_thread::get_id();
    if (!forbidden) continue;
    stream->invalidated = true;
    ViolationLocked(std::string(function) + " during the capture of a graph");
    return FailLocked(cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

void World::Violation(std::string what) {
  std::lock_guard lock(mutex);
  ViolationLocked(std::move(what));
}

void World::ViolationLocked(std::string what) { violations += what + "\n"; }

Stream* World::FindStreamLocked(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    Stream*& made = default_streams[Self().device];
    if (made == nullptr) {
      auto stream = std::make_unique<Stream>(0u);
      made = stream.get();
      made->device = Self().device;
      made->Delay(delay_max, delay_seed);
      streams.emplace(made, std::move(stream));
    }
    return made;
  }
  auto it = streams.find(reinterpret_cast<Stream*>(handle));
  if (it == streams.end() || it->first->destroyed) {
    ViolationLocked("a stream is used that was destroyed");
    return nullptr;
  }
  return it->first;
}

Event* World::FindEventLocked(cudaEvent_t handle) {
  auto it = events.find(reinterpret_cast<Event*>(handle));
  if (it == events.end() || it->first->destroyed) {
    ViolationLocked("an event is used that was destroyed");
    return nullptr;
  }
  return it->first;
}

bool World::CapturesLocked(Stream& stream) {
  if (stream.capturing) ++stream.captured;
  return stream.capturing;
}

const Range* World::Holds(const std::map<uintptr_t, Range>& ranges, const void* at, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return nullptr;
  --it;
  const bool within = address + bytes <= it->first + it->second.bytes;
  return within ? &it->second : nullptr;
}

bool World::Touches(const std::map<uintptr_t, Range>& ranges, const void* at, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  auto it = ranges.lower_bound(address + bytes);
  if (it == ranges.begin()) return false;
  --it;
  return address < it->first + it->second.bytes;
}

// All before any is told, since what one has left may wait for another.
void World::DropLocked(int device, cudaError_t why) {
  std::vector<std::function<void(cudaError_t)>> answers;
  for (auto& [stream, owner] : streams) {
    if (stream->device != device) continue;
    for (auto& answer : stream->Drop(why)) answers.push_back(std::move(answer));
  }
  for (auto& answer : answers) answer(why);
}

// Handles stay, as destroyed: their use is seen.
void World::ResetDeviceLocked(int device, cudaError_t why) {
  sticky.erase(device);
  lives[device] = ++last_life;
  for (auto& [stream, owner] : streams) stream->destroyed |= stream->device == device;
  DropLocked(device, why);
  default_streams.erase(device);
  for (auto& [event, owner] : events) {
    if (event->device == device) event->destroyed = true;
  }
  std::erase_if(device_memory, [&](const auto& item) { return item.second.device == device; });
  for (auto it = pinned_memory.begin(); it != pinned_memory.end();) {
    if (it->second.device != device) {
      ++it;
      continue;
    }
    if (it->second.registered) registered_bytes -= it->second.bytes;
    it = pinned_memory.erase(it);
  }
}

}  // namespace unreft::fake_cudart
