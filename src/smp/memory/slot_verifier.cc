#include "smp/memory/slot_verifier.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format.h"
#include "smp/memory/slot_content.h"

namespace unreft::smp {
namespace {

// A large slot is read by several tasks at a time, since one thread reads some 8 GB/s: a restart
// waits for all of it.
constexpr uint64_t kSharesMax = 8;
constexpr uint64_t kShareBlocksMin = 64;

uint64_t SharesOf(const SlotGeometry& geometry) {
  const uint64_t blocks_max = geometry.data_capacity / geometry.block_bytes;
  return std::clamp<uint64_t>(blocks_max / kShareBlocksMin, 1, kSharesMax);
}

}  // namespace

struct SlotVerifier::Run {
  size_t running = 0;
  absl::Status first_failure;
  absl::AnyInvocable<void(absl::Status)> done;
};

// A share of one slot of it; passes from the executor to the pool and back.
struct SlotVerifier::Item {
  SlotId id;
  Generation generation;
  SlotShare share;
  std::shared_ptr<SlotReading> reading = std::make_shared<SlotReading>();
  absl::Status status;
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
    const uint64_t shares = SharesOf(slot->view->geometry());
    for (uint64_t i = 0; i < shares; ++i) {
      ++run->running;
      auto item = std::make_shared<Item>(slot->id, slot->generation, SlotShare{i, shares});
      slot->readings.push_back(item->reading);
      pool_.Submit(
          [segment = slot->segment, view = *slot->view, item] {
            if (!item->reading->Begin()) return;
            item->status = VerifySlot(view, *item->reading, item->share);
          },
          executor_, lifetime_.Bind([this, run, item] { Finish(*run, *item); }));
    }
  }
  executor_.Post(lifetime_.Bind([run] {
    if (--run->running == 0) run->done(run->first_failure);
  }));
}

void SlotVerifier::Finish(Run& run, const Item& item) {
  Slot* slot = slots_.Find(item.id, item.generation);
  absl::Status status = item.status;
  if (item.reading->stopped()) {
    // What it has found by then may be what the freeing wrote.
    status = absl::AbortedError(fmt::format("slot {}: it was freed while it was read", item.id));
  } else if (!status.ok() && slot != nullptr && slot->phase == SlotPhase::kSealed) {
    slots_.Quarantine(*slot, std::string(status.message()));
    slot->reusable = true;
  } else if (slot != nullptr && slot->view) {
    // Whoever restores from it begins with its geometry.
    slot->view->MendGeometry();
  }
  // Also if another call has found it first.
  const bool is_first = run.first_failure.ok() || absl::IsAborted(run.first_failure);
  if (!status.ok() && is_first) run.first_failure = status;
  if (slot != nullptr) {
    std::erase(slot->readings, item.reading);
    slots_.FreeIfDrained(*slot);
  }
  if (--run.running == 0) run.done(run.first_failure);
}

}  // namespace unreft::smp
