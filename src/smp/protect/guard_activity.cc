#include "smp/protect/guard_activity.h"

#include <utility>

namespace unreft::smp {

void GuardActivity::End() {
  --running_;
  run_rules_();
}

void GuardActivity::Submit(Task work, absl::AnyInvocable<void()> then) {
  Begin();
  task_.seams.pool.Submit(std::move(work), task_.seams.executor,
                          lifetime_.Bind([this, then = std::move(then)]() mutable {
                            if (!cancelled_) then();
                            End();
                          }));
}

void GuardActivity::Retry(absl::AnyInvocable<void()> what) {
  Begin();
  task_.seams.executor.After(task_.options.read_retry,
                             lifetime_.Bind([this, what = std::move(what)]() mutable {
                               if (!cancelled_) what();
                               End();
                             }));
}

}  // namespace unreft::smp
