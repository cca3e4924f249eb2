// PlanRestore: from what is stored and what is wanted to a list of copies. Pure.
//
// Restore is by box, never by rank or node (docs/protocol.md, rule 23): the target may be cut in
// any way.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/plan_piece.h"
#include "base/tensor_spec.h"
#include "recovery/stored_tables.h"

namespace unreft::recovery {

// Whether what is stored like that may be restored into the target: of the same type and, unless
// the target allows another one, global shape.
bool IsAsWanted(const TensorSpec& stored, const TensorSpec& target);

// `stored` covers the targets (StoredTables::Cover). Pieces that write every byte of every target
// exactly once, or, where the stored tensor has
// another global shape and the target allows that, every byte that both have; sorted by (source,
// source_offset); `source` is the number of a slab, `source_offset` counts from the slab's begin,
// `target` is an index in `targets`, `target_offset` counts from the begin of its shard. Single
// rows that continue each other are one piece.
//
// Where several parts hold the same bytes, those of the slab that comes first in `preferred_slabs`
// are taken, of others those of the lower slab number.
//
// Errors name the tensor and the numbers: InvalidArgument for a target that layout::CheckTensorSpec
// refuses, NotFound when it is not stored, FailedPrecondition when it is not as wanted, or when
// stored boxes overlap without being equal, DataLoss when some of its bytes are not stored
// (bytes needed and found), ResourceExhausted for more than kPlanPiecesMax pieces, or too many
// shards to compare with. O(n log n) in the parts and pieces of what is wanted: for a pool, not for
// an executor, unless it is known to be little.
absl::StatusOr<std::vector<PlanPiece>> PlanRestore(const StoredTables& stored,
                                                   std::span<const TensorSpec> targets,
                                                   std::span<const uint32_t> preferred_slabs = {});

// The slabs that pieces of PlanRestore come from, ascending. The pieces' `source` is an index in
// that from now on.
std::vector<uint32_t> NumberSources(std::span<PlanPiece> pieces);

}  // namespace unreft::recovery
