// MemoryPlan: the shared memory that a node needs for its ranks, part by part, before any of it is
// taken. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/slot_header.h"
#include "base/tensor_spec.h"
#include "ec/stripe_layout.h"
#include "smp/core/node_options.h"

namespace unreft::smp {

// What a slot of a rank must be able to hold, in bytes.
struct SlotNeeds {
  uint64_t data_bytes = 0;
  uint64_t extras_bytes = 0;
  uint64_t manifest_bytes = 0;
  uint64_t world = 0;  // that the rank is of; 0: it is not said
};

// What a guard must be able to hold.
struct GuardNeeds {
  uint64_t record_bytes = 0;
  uint32_t chunks = 0;
  uint32_t sources = 0;
  uint64_t positions = 0;
};

struct RankNeeds {
  SlotNeeds slot;
  uint64_t state_bytes = 0;  // that it restores: what its replicas capture included
};

struct MemoryPlan {
  uint64_t slots = 0;
  uint64_t slot_bytes = 0;  // of all of them, like the next
  uint64_t guards = 0;
  uint64_t guard_bytes = 0;
  uint64_t staging_bytes = 0;
  uint64_t control_bytes = 0;

  uint64_t Sum() const;
};

// For a node of a job whose other nodes are like it.
MemoryPlan PlanMemory(const NodeOptions& options, std::span<const RankNeeds> ranks);

// Of one segment.
uint64_t SlotBytes(uint32_t block_bytes, const SlotNeeds& needs);
uint64_t GuardBytes(uint32_t block_bytes, const GuardNeeds& needs);

// The part of a guard's record that the description of such a slot takes at most.
uint64_t DescriptionBytes(const SlotGeometry& geometry);
uint64_t DescriptionBytes(uint32_t block_bytes, const SlotNeeds& needs);
// Of a guard in a group of that shape, all of whose members have such slabs.
GuardNeeds GuardNeedsFor(ec::CodeShape shape, uint32_t block_bytes,
                         std::span<const SlotNeeds> slabs);
// Of a guard's record, all of whose slabs are `slabs` and whose descriptions take
// `description_bytes`.
uint64_t GuardRecordBytes(uint64_t slabs, uint64_t description_bytes);

// Of all that a rank has, by its tensors.
uint64_t StateBytes(std::span<const TensorSpec> tensors);

// Of the segment through which a node's ranks get the bytes of other nodes, by what each of them
// restores: so much is never too little, and no more than restore_staging_bytes, but one block for
// each. None in a job of one node.
uint64_t StagingBytes(const NodeOptions& options, std::span<const uint64_t> state_bytes);

// Of the node segment, the job's records as they are kept, and the ranks' control pages.
uint64_t ControlBytes(uint64_t nodes, uint64_t ranks);

// Of each purpose, the sets that there may be at a time.
struct TileShares {
  size_t encoding = 0;
  size_t decoding = 0;
};

// Every guard of a node may have a window of positions of each of its lanes, and one more is for
// what is encoded once more; four windows of positions are decoded at a time.
TileShares TileSharesOf(const NodeOptions& options);
// The most bytes that these are, of the daemon's own memory: in groups as large as the nodes make
// them. 0 without parities.
uint64_t ScratchBytes(const NodeOptions& options);

// Sums of bytes that nobody has do not wrap.
constexpr uint64_t SumBytes(uint64_t a, uint64_t b) {
  return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

}  // namespace unreft::smp
