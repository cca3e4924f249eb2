// For tests of the restore planner: what is stored, and a plan by it alone.
#pragma once

#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "recovery/restore_planner.h"

namespace unreft::recovery {

// Slabs and what their manifests would say of them.
struct Store {
  std::deque<TensorSpec> specs;  // stay in place
  std::vector<StoredPart> parts;

  void Add(TensorSpec spec, uint32_t slab, uint64_t begin, uint64_t bytes, uint64_t slab_offset) {
    specs.push_back(std::move(spec));
    parts.push_back({&specs.back(), slab, begin, bytes, slab_offset});
  }
  void AddWhole(TensorSpec spec, uint32_t slab, uint64_t slab_offset) {
    const uint64_t bytes = ShardBytes(spec);
    Add(std::move(spec), slab, 0, bytes, slab_offset);
  }
};

inline absl::StatusOr<std::vector<PlanPiece>> PlanRestore(
    std::span<const StoredPart> parts, std::span<const TensorSpec> targets,
    std::span<const uint32_t> preferred = {}) {
  StoredTables tables;
  for (const StoredPart& part : parts) tables.Add(part);
  return recovery::PlanRestore(tables, targets, preferred);
}

}  // namespace unreft::recovery
