// Waiter: one caller that waits for one answer until a deadline. Single-threaded on its executor.
//
// Whichever comes first, the answer or the deadline, runs the callback, in a turn of its own; what
// comes later is ignored.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <utility>

#include "base/executor.h"
#include "base/lifetime.h"

namespace unreft::snapshot {

template <typename T>
class Waiter {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  explicit Waiter(Executor& executor) : executor_(executor) {}

  bool waiting() const { return done_ != nullptr; }

  // `late` says, at the deadline, what was waited for in vain. A caller that waits already is
  // answered Aborted.
  void Wait(Duration timeout, absl::AnyInvocable<std::string()> late, Done done) {
    Answer(absl::AbortedError("another call of the same kind took its place"));
    done_ = std::move(done);
    timer_ = executor_.After(timeout, lifetime_.Bind([this, late = std::move(late)]() mutable {
      Answer(absl::DeadlineExceededError(late()));
    }));
  }

  void Answer(absl::StatusOr<T> answer) {
    if (!waiting()) return;
    executor_.Cancel(std::exchange(timer_, TimerId::kNone));
    executor_.Post([done = std::exchange(done_, nullptr), answer = std::move(answer)]() mutable {
      done(std::move(answer));
    });
  }

 private:
  Executor& executor_;
  Done done_;
  TimerId timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

// For an answer that is only a status.
struct Unit {};

}  // namespace unreft::snapshot
