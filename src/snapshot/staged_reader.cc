#include "snapshot/staged_reader.h"

#include <fmt/format.h>

#include "base/crc32c.h"

namespace unreft::snapshot {

absl::StatusOr<StagedReader> StagedReader::Create(const RestorePlan& plan,
                                                  std::shared_ptr<Segment> staging,
                                                  std::span<const BoundTensor> targets,
                                                  DeviceCopier& copier, uint32_t bad_blocks_max) {
  if (absl::Status status = CheckPlan(plan, targets); !status.ok()) return status;
  if (plan.block_bytes == 0) return absl::InternalError("plan: staged blocks of 0 bytes");
  const std::span<const std::byte> mapped = staging->bytes();
  if (mapped.size() < plan.staging_bytes) {
    return absl::DataLossError(
        fmt::format("segment {}: what other nodes hold needs {} bytes of it, found {}",
                    plan.staging_segment, plan.staging_bytes, mapped.size()));
  }
  return StagedReader(std::move(staging), mapped.first(plan.staging_bytes), plan, targets, copier,
                      bad_blocks_max);
}

StagedReader::StagedReader(std::shared_ptr<Segment> staging, std::span<const std::byte> ring,
                           const RestorePlan& plan, std::span<const BoundTensor> targets,
                           DeviceCopier& copier, uint32_t bad_blocks_max)
    : staging_(std::move(staging)),
      ring_(ring),
      bytes_(plan.staged_bytes),
      block_bytes_(plan.block_bytes),
      targets_(targets),
      copier_(copier),
      bad_blocks_left_(bad_blocks_max) {
  for (const PlanPiece& piece : plan.pieces) {
    if (!plan.sources[piece.source].is_staged()) continue;
    for (const uint64_t block : BlocksOf({&piece, 1}, block_bytes_)) {
      awaited_[{piece.source, block}].push_back(static_cast<uint32_t>(pieces_.size()));
    }
    pieces_.push_back(piece);
  }
}

absl::StatusOr<std::optional<StagedDone>> StagedReader::Take(const Staged& staged) {
  if (absl::Status status = staged.status.ToStatus(); !status.ok()) return status;
  std::optional<StagedDone> answer;
  if (staged.bytes > 0) {
    absl::StatusOr<StagedDone> taken = TakeBlock(staged);
    if (!taken.ok()) return taken.status();
    answer = *std::move(taken);
  }
  last_ = last_ || staged.last;
  // What did not verify may come again after the last.
  if (last_ && !awaited_.empty() && bad_.empty()) {
    return absl::DataLossError(fmt::format(
        "{} bytes of other nodes were needed, {} came, and no more will", bytes_, copied_));
  }
  return answer;
}

absl::StatusOr<StagedDone> StagedReader::TakeBlock(const Staged& staged) {
  if (absl::Status status = CheckBlock(staged); !status.ok()) return status;
  const std::span<const std::byte> block = ring_.subspan(staged.offset, staged.bytes);
  const BlockKey key(staged.source, staged.block);
  StagedDone answer{.request = staged.request, .offset = staged.offset};
  if (const uint32_t found = Crc32c(block); found != staged.crc) {
    absl::Status bad =
        absl::DataLossError(fmt::format("a block of another node, {} bytes that were staged at {}, "
                                        "needs CRC {:08x}, found {:08x}",
                                        staged.bytes, staged.offset, staged.crc, found));
    if (bad_blocks_left_ == 0) return bad;
    --bad_blocks_left_;
    bad_.insert(key);
    answer.status = bad;
    return answer;
  }
  if (absl::Status status = Copy(key, block); !status.ok()) return status;
  bad_.erase(key);
  awaited_.erase(key);
  return answer;
}

absl::Status StagedReader::CheckBlock(const Staged& staged) const {
  if (staged.offset > ring_.size() || staged.bytes > ring_.size() - staged.offset) {
    return absl::InvalidArgumentError(fmt::format("staged block [{}, +{}) of a staging of {} bytes",
                                                  staged.offset, staged.bytes, ring_.size()));
  }
  if (staged.bytes != block_bytes_) {
    return absl::InvalidArgumentError(fmt::format("staged block [{}, +{}) needs {} bytes",
                                                  staged.offset, staged.bytes, block_bytes_));
  }
  if (!awaited_.contains({staged.source, staged.block})) {
    return absl::InvalidArgumentError(fmt::format(
        "staged block {} of source {}: it was copied before, or nothing of it is wanted",
        staged.block, staged.source));
  }
  return absl::OkStatus();
}

absl::Status StagedReader::Copy(const BlockKey& key, std::span<const std::byte> block) {
  const uint64_t begin = key.second * block_bytes_;
  std::vector<CopyOp> ops;
  for (const uint32_t index : awaited_.at(key)) {
    const PlanPiece& piece = pieces_[index];
    const BoundTensor& target = targets_[piece.target];
    ForEachRowIn(
        piece, begin, begin + block_bytes_, [&](uint64_t from, uint64_t to, uint64_t bytes) {
          ops.push_back(
              {block.data() + (from - begin), target.data + to, bytes, target.on_device()});
          copied_ += bytes;
        });
  }
  return copier_.Restore(ops);
}

}  // namespace unreft::snapshot
