// Restorer: copies a decided version out of the slots of the node into a rank's tensors.
//
// Block by block: verify, and copy what the plan wants of it in the same pass: to host memory, or
// to a room of the copier, whose bytes go to the device once they are verified. It trusts neither
// the bytes nor the plan: every piece is checked to lie within its slot, and what CheckPlan says.
// What was copied of a block that turns out not to verify is an error as if it had not been. Pieces
// of staged sources are left to the StagedReader.
// Stateless but for the mappings, which stay with WarmSlots; blocks the calling thread.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <span>
#include <vector>

#include "base/session_frames.h"
#include "snapshot/bound_tensor.h"
#include "snapshot/device_copier.h"
#include "snapshot/restore_plan.h"
#include "snapshot/sealed_slot.h"
#include "snapshot/warm_slots.h"

namespace unreft::snapshot {

struct RestoreReport {
  absl::Status status;
  // What did not verify; generation 0 when nothing, or when the slot was only reused meanwhile.
  SlotId bad_slot;
  Generation bad_generation;
};

class Restorer {
 public:
  // With `threads` > 1, Read copies on so many threads, which end before it returns; the copier's
  // Restore may then run on several at a time.
  // `device_threads` if any target is on a device.
  Restorer(WarmSlots& slots, DeviceCopier& copier, uint32_t threads, uint32_t device_threads = 1)
      : slots_(slots), copier_(copier), threads_(threads), device_threads_(device_threads) {}

  // Asked between blocks, on the thread that called Read, whether to go on.
  using GoesOn = absl::FunctionRef<bool()>;

  // On an error the bytes of the targets are undefined. Internal for a plan that is wrong in
  // itself, Cancelled when it shall not go on. No target is touched once it has returned.
  RestoreReport Read(
      const RestorePlan& plan, std::span<const BoundTensor> targets,
      GoesOn goes_on = [] { return true; }) const;

  RestoreReport ReadExtras(const WireSlot& where, std::vector<std::byte>& extras) const;

 private:
  absl::Status ReadSlots(const RestorePlan& plan, std::span<const BoundTensor> targets,
                         GoesOn goes_on, WireSlot& where) const;
  absl::Status ReadSlot(const SealedSlot& slot, std::span<const PlanPiece> pieces,
                        std::span<const BoundTensor> targets, GoesOn goes_on) const;
  absl::Status ReadOnThreads(const SealedSlot& slot, std::span<const PlanPiece> pieces,
                             std::span<const BoundTensor> targets, std::span<const uint64_t> blocks,
                             uint32_t threads, GoesOn goes_on) const;
  absl::Status ReadBlocks(const SealedSlot& slot, std::span<const PlanPiece> pieces,
                          std::span<const BoundTensor> targets, std::span<const uint64_t> blocks,
                          GoesOn goes_on) const;

  WarmSlots& slots_;
  DeviceCopier& copier_;
  const uint32_t threads_;
  const uint32_t device_threads_;
};

}  // namespace unreft::snapshot
