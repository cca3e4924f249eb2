#include "snapshot/restore_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "layout/tensor_table.h"

namespace unreft::snapshot {
namespace {

absl::Status CheckPiece(const RestorePlan& plan, const PlanPiece& piece,
                        std::span<const BoundTensor> targets) {
  if (piece.source >= plan.sources.size() || piece.target >= targets.size()) {
    return absl::InternalError(fmt::format("plan: source {} of {}, tensor {} of {}", piece.source,
                                           plan.sources.size(), piece.target, targets.size()));
  }
  const TensorSpec& spec = targets[piece.target].spec;
  if (PieceFits(piece, layout::kShardBytesLimit, ShardBytes(spec))) return absl::OkStatus();
  return absl::InternalError(fmt::format(
      "plan: tensor {} has {} bytes; a piece writes {} rows of {} bytes, each {} behind the one "
      "before, from {} on",
      spec.name, ShardBytes(spec), piece.rows, piece.bytes, piece.target_pitch,
      piece.target_offset));
}

}  // namespace

absl::Status CheckPlan(const RestorePlan& plan, std::span<const BoundTensor> targets) {
  uint64_t staged = 0;
  for (const PlanPiece& piece : plan.pieces) {
    if (absl::Status status = CheckPiece(plan, piece, targets); !status.ok()) return status;
    if (plan.sources[piece.source].is_staged()) staged += piece.total_bytes();
  }
  std::vector<PlanPiece> by_target = plan.pieces;
  std::ranges::sort(by_target, {}, &PlanPiece::target);
  for (uint32_t target = 0; target < targets.size(); ++target) {
    const TensorSpec& spec = targets[target].spec;
    const auto pieces = std::ranges::equal_range(by_target, target, {}, &PlanPiece::target);
    const std::span<const PlanPiece> of_target(pieces.begin(), pieces.end());
    const auto flaw = FindCoverageFlaw(of_target, ShardBytes(spec), spec.allow_shape_mismatch);
    if (flaw) {
      return absl::InternalError(fmt::format(
          "plan: tensor {} has {} bytes, of which byte {} is {}", spec.name, ShardBytes(spec),
          flaw->at, flaw->is_written_twice ? "written twice" : "left out"));
    }
  }
  if (staged == plan.staged_bytes) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("plan: its pieces have {} bytes of other nodes, and {} are to come staged",
                  staged, plan.staged_bytes));
}

}  // namespace unreft::snapshot
