// GuardActivity: counts what is under way for a guard that is being filled, so that the guard is
// given to nobody else while anything may touch it.
#pragma once

#include <absl/functional/any_invocable.h>

#include <cstdint>
#include <utility>

#include "base/lifetime.h"
#include "smp/protect/guard_task.h"

namespace unreft::smp {

// Single-threaded on the node's executor. What is begun here has its end here, and calls back no
// more when this is gone.
class GuardActivity {
 public:
  // `run_rules`: something has ended, or Look was called.
  GuardActivity(const GuardTask& task, absl::AnyInvocable<void()> run_rules)
      : task_(task), run_rules_(std::move(run_rules)) {}

  void Begin() { ++running_; }
  void End();
  bool is_idle() const { return running_ == 0; }
  void Look() { run_rules_(); }

  // From now on nothing that was begun is gone on with.
  void Cancel() { cancelled_ = true; }
  bool is_cancelled() const { return cancelled_; }

  // Does the work on the pool; then goes on with `then`.
  void Submit(Task work, absl::AnyInvocable<void()> then);
  // Goes on with `what` after the pause between two tries.
  void Retry(absl::AnyInvocable<void()> what);

 private:
  const GuardTask& task_;
  absl::AnyInvocable<void()> run_rules_;
  uint64_t running_ = 0;
  bool cancelled_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
