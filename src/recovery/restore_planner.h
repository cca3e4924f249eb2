// PlanRestore: from what is stored and what is wanted to a list of copies. Pure.
//
// Restore is by box, never by rank or node (docs/protocol.md, rule 23): the target may be cut in
// any way.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::recovery {

// Bytes [shard_begin, shard_begin + bytes) of a shard, row-major, at `slab_offset` of a slab. From
// a manifest that has been checked (layout::DecodeManifest): the spec is valid, the bytes lie in
// it.
struct StoredPart {
  const TensorSpec* spec = nullptr;  // of the shard
  uint32_t slab = 0;                 // the caller's number of the slab
  uint64_t shard_begin = 0;
  uint64_t bytes = 0;
  uint64_t slab_offset = 0;
};

// Of all targets together: a row of a target in a stored shard is at least one. As many pieces as
// that go into one message to the trainer.
inline constexpr uint64_t kPlanRunsMax = 2'000'000;

struct Piece {
  uint32_t slab = 0;
  uint32_t target = 0;         // index in `targets`
  uint64_t slab_offset = 0;    // bytes
  uint64_t target_offset = 0;  // bytes from the beginning of the target's shard
  uint64_t bytes = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Pieces that write every byte of every target exactly once, sorted by (slab, slab_offset), runs
// that continue each other merged. Where several parts hold the same bytes, those of the slab that
// comes first in `preferred_slabs` are taken, of others those of the lower slab number. Errors name
// the tensor and the numbers: InvalidArgument for a target that layout::CheckTensorSpec refuses,
// NotFound when it is not stored, FailedPrecondition when dtype or global shape differ, DataLoss
// when some of its bytes are not stored (bytes needed and found), ResourceExhausted for more than
// kPlanRunsMax runs, or too many shards to compare with. O(n log n) in the parts and rows of what
// is wanted: for a pool, not for an executor, unless it is known to be little.
absl::StatusOr<std::vector<Piece>> PlanRestore(std::span<const StoredPart> stored,
                                               std::span<const TensorSpec> targets,
                                               std::span<const uint32_t> preferred_slabs = {});

}  // namespace unreft::recovery
