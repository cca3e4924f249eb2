// StagedReader: copies what a plan left out, block by block as the daemon stages it, into a rank's
// tensors.
//
// It trusts neither the bytes nor the daemon: a block is verified as a whole, and every piece of it
// is checked to lie within the block and within what its tensor still lacks, before a byte of it is
// copied. So every byte is written once, and none that the local pieces write: those may be copied
// on another thread at the same time. Belongs to one staging: after a reconnect there is a new one.
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

namespace unreft::snapshot {

class StagedReader {
 public:
  // `staging` is mapped for plan.staging_bytes at least. Internal for a plan that is wrong in
  // itself, DataLoss for a segment that is too small.
  static absl::StatusOr<StagedReader> Create(const Plan& plan, std::shared_ptr<Segment> staging,
                                             std::span<const BoundTensor> targets,
                                             DeviceCopier& copier, uint32_t bad_blocks_max);

  // What to answer; nothing when there was no block. An error ends the restore: the daemon's own;
  // InvalidArgument for a block or piece that leads outside, or writes a byte again; DataLoss when
  // more or less came than was announced, or more than `bad_blocks_max` blocks did not verify.
  absl::StatusOr<std::optional<StagedDone>> Take(const Staged& staged);

  bool complete() const { return last_ && copied_ == bytes_; }
  uint64_t copied() const { return copied_; }
  uint64_t bytes() const { return bytes_; }

 private:
  StagedReader(std::shared_ptr<Segment> staging, std::span<const std::byte> ring, uint64_t bytes,
               std::span<const BoundTensor> targets, DeviceCopier& copier, uint32_t bad_blocks_max)
      : staging_(std::move(staging)),
        ring_(ring),
        bytes_(bytes),
        targets_(targets),
        copier_(copier),
        bad_blocks_left_(bad_blocks_max) {}

  absl::StatusOr<StagedDone> TakeBlock(const Staged& staged);
  absl::Status CheckBlock(const Staged& staged) const;
  absl::Status Claim(const WirePiece& piece, size_t index, uint64_t block_bytes);

  std::shared_ptr<Segment> staging_;
  std::span<const std::byte> ring_;
  uint64_t bytes_ = 0;  // that are to come
  uint64_t copied_ = 0;
  std::span<const BoundTensor> targets_;
  DeviceCopier& copier_;
  bool last_ = false;
  uint32_t bad_blocks_left_ = 0;
  // Ranges that are not written yet: target and begin to end.
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> missing_;
  // Blocks that did not verify and were not sent again, known by where their first piece goes.
  std::set<std::pair<uint32_t, uint64_t>> bad_;
};

}  // namespace unreft::snapshot
