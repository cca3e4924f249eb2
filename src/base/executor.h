// Executor: the seam to time and order.
//
// Everything with state in Unreft lives on one executor and runs in its turns, one at a time; time
// comes from nowhere else. AsioExecutor runs on a thread, SimExecutor in virtual time on a seed.
#pragma once

#include <absl/functional/any_invocable.h>

#include <chrono>
#include <cstdint>

namespace unreft {

using Task = absl::AnyInvocable<void()>;
using Duration = std::chrono::nanoseconds;
// Monotonic; decides liveness, never safety (docs/protocol.md, rule 20). The origin is unspecified.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

enum class TimerId : uint64_t { kNone = 0 };

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `task` in a later turn, never inline. Tasks posted by one thread run in the order of
  // posting. Thread-safe. A task posted after the executor stopped is destroyed without running.
  virtual void Post(Task task) = 0;

  // Runs `task` in a turn no earlier than `delay` from now; `delay` <= 0 means the next turns.
  // Only in a turn of this executor.
  virtual TimerId After(Duration delay, Task task) = 0;

  // The timer's task will not run once this returns; a timer that has run, or kNone, is ignored.
  // Only in a turn of this executor.
  virtual void Cancel(TimerId timer) = 0;

  // Thread-safe.
  virtual Time Now() const = 0;

  // Whether the caller runs in a turn of this executor: the assertion of every single-threaded
  // class.
  virtual bool InTurn() const = 0;
};

}  // namespace unreft
