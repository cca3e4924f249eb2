// ShortageRetry: looks again, a while after something was refused for want of memory or disk.
// Nobody tells when there is some again.
#pragma once

#include <absl/functional/any_invocable.h>

#include <utility>

#include "base/executor.h"

namespace unreft::smp {

// Single-threaded on the executor.
class ShortageRetry {
 public:
  // `look` arms it again if it is still short.
  ShortageRetry(Executor& executor, Duration interval, absl::AnyInvocable<void()> look)
      : executor_(executor), interval_(interval), look_(std::move(look)) {}
  ~ShortageRetry() { executor_.Cancel(timer_); }
  ShortageRetry(const ShortageRetry&) = delete;
  ShortageRetry& operator=(const ShortageRetry&) = delete;

  // Once, however often it is said.
  void Arm() {
    if (timer_ != TimerId::kNone) return;
    timer_ = executor_.After(interval_, [this] {
      timer_ = TimerId::kNone;
      look_();
    });
  }

 private:
  Executor& executor_;
  const Duration interval_;
  absl::AnyInvocable<void()> look_;
  TimerId timer_ = TimerId::kNone;
};

}  // namespace unreft::smp
