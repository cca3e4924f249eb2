#include "smp/desk/scrubber.h"

#include "base/format.h"

namespace unreft::smp {

Scrubber::Scrubber(NodeState& state)
    : state_(state), verifier_(state.seams.executor, state.seams.pool, *state.slots) {
  if (state_.options.scrub_interval > Duration::zero()) Schedule();
}

Scrubber::~Scrubber() { state_.seams.executor.Cancel(timer_); }

void Scrubber::Schedule() {
  timer_ = state_.seams.executor.After(state_.options.scrub_interval, [this] { Scrub(); });
}

void Scrubber::Scrub() {
  timer_ = TimerId::kNone;
  const Version version = state_.record->committed();
  verifier_.Verify(state_.slots->Sealed(version), [this, version](absl::Status status) {
    // Aborted: newer versions were committed meanwhile, and its slots were freed for the next.
    if (!status.ok() && !absl::IsAborted(status)) {
      state_.seams.log.Error("scrub: version {}: {}", version, status.message());
    }
    Schedule();
  });
}

}  // namespace unreft::smp
