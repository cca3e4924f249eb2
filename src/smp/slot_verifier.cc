#include "smp/slot_verifier.h"

#include "smp/slot_sealer.h"

namespace unreft::smp {

struct SlotVerifier::Run {
  size_t running = 0;
  absl::Status first_failure;
  absl::AnyInvocable<void(absl::Status)> done;
};

SlotVerifier::SlotVerifier(Executor& executor, WorkPool& pool, SlotStore& slots)
    : executor_(executor), pool_(pool), slots_(slots) {}

void SlotVerifier::Verify(const std::vector<Slot*>& slots,
                          absl::AnyInvocable<void(absl::Status)> done) {
  auto run = std::make_shared<Run>();  // shared by the tasks of this call
  run->done = std::move(done);
  run->running = 1;  // this call's own, so that the last one to end is found below
  for (Slot* slot : slots) {
    if (slot->phase != SlotPhase::kSealed) continue;
    ++run->running;
    auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
    pool_.Submit(
        [segment = slot->segment, view = *slot->view, status] { *status = VerifySlot(view); },
        executor_,
        [this, alive = std::weak_ptr(alive_), run, id = slot->id, generation = slot->generation,
         status] {
          if (!alive.expired()) Finish(*run, id, generation, *status);
        });
  }
  executor_.Post([alive = std::weak_ptr(alive_), run] {
    if (!alive.expired() && --run->running == 0) run->done(run->first_failure);
  });
}

void SlotVerifier::Finish(Run& run, SlotId id, Generation generation, const absl::Status& status) {
  if (!status.ok()) {
    Slot* slot = slots_.Find(id, generation);
    if (slot != nullptr && slot->phase == SlotPhase::kSealed) {
      slots_.Quarantine(*slot, std::string(status.message()));
      slot->reusable = true;
    }
    // Also if another call has found it first.
    if (run.first_failure.ok()) run.first_failure = status;
  }
  if (--run.running == 0) run.done(run.first_failure);
}

}  // namespace unreft::smp
