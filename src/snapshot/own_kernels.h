// OwnKernels: kernels of Unreft's own that are under way, so that an error which only kernels raise
// is called the training job's where none of them can have raised it. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace unreft::snapshot {

class OwnKernels {
 public:
  // One is launched. `began`, which the kernel sets before it touches anything of the job's, is
  // there until End; null: it may have begun.
  void Launched(uint32_t* began = nullptr) {
    std::lock_guard lock(mutex_);
    under_way_.push_back(began);
  }
  // It is over, or will never run. Not `well`: it may be what has gone wrong, and stays counted if
  // it had begun.
  void Ended(uint32_t* began, bool well) {
    std::lock_guard lock(mutex_);
    under_way_.erase(std::find(under_way_.begin(), under_way_.end(), began));
    gone_wrong_ += !well && HasBegun(began) ? 1 : 0;
  }
  // That may have raised what is seen now.
  uint64_t count() const {
    std::lock_guard lock(mutex_);
    return gone_wrong_ + static_cast<uint64_t>(std::count_if(under_way_.begin(), under_way_.end(),
                                                             &OwnKernels::HasBegun));
  }

 private:
  static bool HasBegun(uint32_t* began) {
    return began == nullptr || std::atomic_ref(*began).load(std::memory_order_relaxed) != 0;
  }

  mutable std::mutex mutex_;  // covers all below
  std::vector<uint32_t*> under_way_;
  uint64_t gone_wrong_ = 0;
};

}  // namespace unreft::snapshot
