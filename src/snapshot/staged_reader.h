// StagedReader: copies what a plan wants of other nodes, block by block as the daemon stages it,
// into a rank's tensors.
//
// It trusts neither the bytes nor the daemon: a block is verified as a whole before a byte of it is
// copied, and taken once, so that every byte is written once, and none that the local pieces write:
// those may be copied on another thread at the same time. Belongs to one staging: after a reconnect
// there is a new one.
//
// Single-threaded.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/segment_store.h"
#include "base/session_frames.h"
#include "snapshot/bound_tensor.h"
#include "snapshot/device_copier.h"
#include "snapshot/restore_plan.h"

namespace unreft::snapshot {

class StagedReader {
 public:
  // `staging` is mapped for plan.staging_bytes at least. Errors as CheckPlan; DataLoss for a
  // segment that is too small.
  static absl::StatusOr<StagedReader> Create(const RestorePlan& plan,
                                             std::shared_ptr<Segment> staging,
                                             std::span<const BoundTensor> targets,
                                             DeviceCopier& copier, uint32_t bad_blocks_max);

  // What to answer; nothing when there was no block. An error ends the restore: the daemon's own;
  // InvalidArgument for a block that leads outside, or that the plan does not want, or that came
  // before; DataLoss when less came than was announced, or more than `bad_blocks_max` blocks did
  // not verify.
  absl::StatusOr<std::optional<StagedDone>> Take(const Staged& staged);

  bool complete() const { return last_ && awaited_.empty(); }

 private:
  using BlockKey = std::pair<uint32_t, uint64_t>;  // source, and its block

  StagedReader(std::shared_ptr<Segment> staging, std::span<const std::byte> ring,
               const RestorePlan& plan, std::span<const BoundTensor> targets, DeviceCopier& copier,
               uint32_t bad_blocks_max);

  absl::StatusOr<StagedDone> TakeBlock(const Staged& staged);
  absl::Status CheckBlock(const Staged& staged) const;
  absl::Status Copy(const BlockKey& key, std::span<const std::byte> block);

  std::shared_ptr<Segment> staging_;
  std::span<const std::byte> ring_;
  uint64_t bytes_ = 0;  // that are to come
  uint64_t copied_ = 0;
  uint64_t block_bytes_ = 0;
  std::vector<PlanPiece> pieces_;  // of staged sources
  std::span<const BoundTensor> targets_;
  DeviceCopier& copier_;
  bool last_ = false;
  uint32_t bad_blocks_left_ = 0;
  // Blocks that were not copied yet, each with the indices of the pieces that lie in it.
  std::map<BlockKey, std::vector<uint32_t>> awaited_;
  std::set<BlockKey> bad_;  // did not verify, and were not sent again
};

}  // namespace unreft::snapshot
