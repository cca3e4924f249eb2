// Patience: whether a call that waits goes on: the caller is asked, on the waiting thread, about
// every slice of time. One per call, on one thread.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/executor.h"

namespace unreft::snapshot {

// What is waited for, as part of a sentence, and for how long by now. False ends the call.
using KeepWaiting = std::function<bool(const std::string& waited_for, Duration so_far)>;

class Patience {
 public:
  // A null `keep_waiting` has no end.
  Patience(const Executor& executor, Duration slice, const KeepWaiting& keep_waiting)
      : executor_(executor),
        slice_(slice),
        keep_waiting_(keep_waiting),
        since_(executor.Now()),
        asked_(since_) {}

  Duration slice() const { return slice_; }
  Duration so_far() const { return executor_.Now() - since_; }
  bool ended() const { return ended_; }

  // Whether to go on. Cheap until a slice has passed since it asked last.
  template <typename WaitedFor>
  bool Lasts(WaitedFor waited_for) {
    if (ended_ || keep_waiting_ == nullptr) return !ended_;
    const Time now = executor_.Now();
    if (now - asked_ < slice_) return true;
    asked_ = now;
    ended_ = !keep_waiting_(waited_for(), now - since_);
    return !ended_;
  }

 private:
  const Executor& executor_;
  const Duration slice_;
  const KeepWaiting& keep_waiting_;
  const Time since_;
  Time asked_;
  bool ended_ = false;
};

}  // namespace unreft::snapshot
