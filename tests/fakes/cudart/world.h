// The fake runtime's state: what exists, and the rules for it. Internal to the library.
//
// `World::mutex` covers everything here but a stream's queue and an event's mark, which have locks
// of their own, so that streams that are not ordered to each other share none: a race between them
// is a race to the thread sanitizer too.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unreft::fake_cudart {

// One recording of an event: reached once, by a stream or because its context died.
class Mark {
 public:
  void Reach(cudaError_t status) {
    {
      std::lock_guard lock(mutex_);
      if (reached_) return;
      reached_ = true;
      status_ = status;
    }
    changed_.notify_all();
  }
  cudaError_t Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
    return status_;
  }
  bool reached() {
    std::lock_guard lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  cudaError_t status_ = cudaSuccess;
};

// A stream: a thread that runs operations in order.
class Stream {
 public:
  explicit Stream(unsigned flags);
  // Drops what has not begun.
  ~Stream();

  // `run` is not called when it is dropped first; `always` is in any case, with why it was dropped.
  void Push(std::function<void()> run, std::function<void(cudaError_t)> always = nullptr);
  // Drops what has not begun and whatever comes later; what is to be told of the first.
  [[nodiscard]] std::vector<std::function<void(cudaError_t)>> Drop(cudaError_t why);
  void Delay(unsigned microseconds_max, unsigned seed);

  const unsigned flags;
  // Covered by World::mutex.
  int device = 0;
  bool destroyed = false;
  bool capturing = false;
  bool invalidated = false;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id capturer;
  int captured = 0;

 private:
  struct Item {
    std::function<void()> run;
    std::function<void(cudaError_t)> always;
  };
  void Run();
  void Pause(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool ending_ = false;
  cudaError_t dropped_ = cudaSuccess;
  unsigned delay_max_ = 0;
  std::minstd_rand random_;
  std::thread thread_;
};

struct Event {
  std::shared_ptr<Mark> mark;  // of the last recording
  bool destroyed = false;
  bool captured = false;
  int device = 0;
};

struct Range {
  size_t bytes = 0;
  int device = 0;
  bool registered = false;  // by cudaHostRegister, not allocated pinned
};

// How a call fails that is to fail.
struct Fault {
  int in_calls = 0;  // 1: the next; 0: none
  cudaError_t error = cudaSuccess;
  cudaError_t always = cudaSuccess;
};

class World {
 public:
  static World& Get();

  void Restart(int devices);

  // What `function` returns instead of doing its work; counts the call. Sets the last error.
  cudaError_t Enter(const char* function);
  // Also fails, and breaks the capture, when it must not be called while a graph is captured.
  cudaError_t EnterUnsafe(const char* function);
  cudaError_t Fail(cudaError_t error);
  // "Locked": mutex is held.
  cudaError_t FailLocked(cudaError_t error);
  void Violation(std::string what);
  void ViolationLocked(std::string what);

  // The stream behind a handle; null and a violation when it was destroyed.
  Stream* FindStreamLocked(cudaStream_t handle);
  Event* FindEventLocked(cudaEvent_t handle);
  // Notes the operation if the stream captures: then it is not to run.
  bool CapturesLocked(Stream& stream);
  // The range of `ranges` that holds all of [at, at + bytes); null when none does.
  static const Range* Holds(const std::map<uintptr_t, Range>& ranges, const void* at, size_t bytes);
  static bool Touches(const std::map<uintptr_t, Range>& ranges, const void* at, size_t bytes);

  void ResetDeviceLocked(int device, cudaError_t why);
  void DropLocked(int device, cudaError_t why);

  std::mutex mutex;
  int devices = 0;
  int driver = 13000;
  std::map<int, cudaError_t> sticky;        // by device
  std::map<int, unsigned long long> lives;  // of the contexts, by device
  unsigned long long last_life = 0;
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  std::map<Event*, std::unique_ptr<Event>> events;
  std::map<int, Stream*> default_streams;
  std::map<uintptr_t, Range> device_memory;
  std::map<uintptr_t, Range> pinned_memory;
  std::map<uintptr_t, std::unique_ptr<std::vector<std::byte>>> blocks;
  size_t pinned_max = SIZE_MAX;
  size_t registered_bytes = 0;
  std::map<std::string, Fault> faults;
  std::map<std::string, int> calls;
  std::string violations;
  unsigned delay_max = 0;
  unsigned delay_seed = 0;
  int libraries = 0;  // that are loaded
  // Read by streams, relaxed, so that nothing is ordered by it.
  std::atomic<uintptr_t> flip_at = 0;  // 0: no bit is to be flipped
  std::atomic<uint32_t> wrong_kernel = 0;

  // Held copies; apart, since streams wait for it.
  std::mutex hold_mutex;
  std::condition_variable hold_changed;
  bool held = false;
  void WaitUntilReleased();
};

// Of the calling thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  bool exempt = false;
};
ThreadState& Self();

}  // namespace unreft::fake_cudart
