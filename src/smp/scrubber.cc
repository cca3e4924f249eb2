#include "smp/scrubber.h"

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
  std::vector<Slot*> committed = state_.slots->Sealed(state_.record->committed());
  verifier_.Verify(committed, [this](absl::Status status) {
    if (!status.ok()) {
      state_.seams.log.Error("scrub: version {}: {}", state_.record->committed(), status.message());
    }
    Schedule();
  });
}

}  // namespace unreft::smp
