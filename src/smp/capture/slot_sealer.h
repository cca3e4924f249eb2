// SlotSealer: from published bytes to a sealed slot.
//
// Computes each block's CRC once, as soon as the trainer has published it, and when the last byte
// is there writes manifest, seal and state word, in this order, so that a death at any point leaves
// the slot capturing. Where the trainer sent CRCs that were computed on its device, they are
// compared before (design note "A checksum before the copy"). A slab that comes back from its group
// gets its CRC table, manifest and seal from SlabRebuilder.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <memory>
#include <string>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/lifetime.h"
#include "base/work_pool.h"
#include "smp/memory/slot.h"

namespace unreft::smp {

// Single-threaded on the node's executor; the CRCs run on the work pool.
class SlotSealer {
 public:
  // `on_done(slot, status)`: the slot is sealed (ok), was abandoned while a task ran (Aborted; free
  // it now), or cannot be sealed: DataLoss when its bytes are not what the device had.
  using OnDone = absl::AnyInvocable<void(Slot&, absl::Status)>;
  // `on_progress(slot)`: more of its blocks have their CRCs.
  using OnProgress = absl::AnyInvocable<void(Slot&)>;

  // Passes the fault point "slot.seal" between the seal and the state word.
  SlotSealer(Executor& executor, WorkPool& pool, std::string job, uint32_t task_blocks,
             FaultPoints* faults, OnDone on_done, OnProgress on_progress = nullptr);

  // The first `blocks` blocks are in place.
  void Publish(Slot& slot, uint64_t blocks);

  // All bytes are in place. InvalidArgument when the numbers do not fit the slot or its
  // registration.
  absl::Status Complete(Slot& slot, const Captured& captured);

 private:
  struct Work;

  static absl::StatusOr<SlotSeal> MakeSeal(SlotView view, Generation generation, const Work& work);
  void Advance(Slot& slot);
  void StartChecksums(Slot& slot);
  void FinishChecksums(Slot& slot, uint64_t blocks_done);
  void StartSeal(Slot& slot);
  void Finish(Slot& slot, layout::SlotManifest manifest, absl::Status status, SlotSeal seal);

  Executor& executor_;
  WorkPool& pool_;
  std::string job_;
  uint32_t task_blocks_;
  FaultPoints* faults_;
  OnDone on_done_;
  OnProgress on_progress_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
