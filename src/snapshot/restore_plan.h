// RestorePlan: from where each byte of a read comes, as the daemon named it.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/session_frames.h"
#include "snapshot/bound_tensor.h"

namespace unreft::snapshot {

struct RestorePlan {
  std::vector<PlanSource> sources;
  std::vector<PlanPiece> pieces;  // of all pages
  // Where the blocks of staged sources come, if there are any.
  std::string staging_segment;
  uint64_t staging_bytes = 0;
  uint64_t staged_bytes = 0;
  uint32_t block_bytes = 0;
};

// Internal unless all pieces name sources and targets that are there, and lie within the targets;
// together they write every byte of every target once; and those of staged sources have
// plan.staged_bytes. O(rows log pieces).
absl::Status CheckPlan(const RestorePlan& plan, std::span<const BoundTensor> targets);

}  // namespace unreft::snapshot
