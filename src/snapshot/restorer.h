// Restorer: copies a decided version out of the slots of the node into a rank's tensors.
//
// Block by block: verify, then copy what the plan wants of it while it is in the cache. It writes
// nothing but the tensors, and trusts neither the bytes nor the plan: every piece is checked to lie
// within its slot and its tensor, and all of them to write each byte of each tensor exactly once.
// Stateless; blocks the calling thread.
#pragma once

#include <absl/status/status.h>

#include <span>
#include <vector>

#include "base/segment_store.h"
#include "base/session_frames.h"
#include "snapshot/bound_tensor.h"
#include "snapshot/device_copier.h"
#include "snapshot/sealed_slot.h"

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
  Restorer(SegmentStore& store, DeviceCopier& copier, uint32_t threads)
      : store_(store), copier_(copier), threads_(threads) {}

  // On an error the bytes of the targets are undefined. Internal for a plan that is wrong in
  // itself.
  RestoreReport Read(const Plan& plan, std::span<const BoundTensor> targets) const;

  RestoreReport ReadExtras(const WireSlot& where, std::vector<std::byte>& extras) const;

 private:
  // The part of a piece that lies in one block.
  struct Cut {
    uint64_t block = 0;
    uint64_t block_offset = 0;
    std::byte* target = nullptr;
    uint64_t bytes = 0;
  };

  absl::Status ReadSlot(const SealedSlot& slot, std::span<const WirePiece> pieces,
                        std::span<const BoundTensor> targets) const;
  absl::Status CopyCuts(const SealedSlot& slot, std::span<const Cut> cuts) const;
  absl::Status CopyCutsOnThreads(const SealedSlot& slot, std::span<const Cut> cuts) const;
  static absl::StatusOr<std::vector<Cut>> MakeCuts(const SealedSlot& slot,
                                                   std::span<const WirePiece> pieces,
                                                   std::span<const BoundTensor> targets);

  SegmentStore& store_;
  DeviceCopier& copier_;
  const uint32_t threads_;
};

// Internal unless the pieces name slots and targets that are there and write every byte of every
// target exactly once.
absl::Status CheckPieces(const Plan& plan, std::span<const BoundTensor> targets);

}  // namespace unreft::snapshot
