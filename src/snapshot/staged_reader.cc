#include "snapshot/staged_reader.h"

#include <iterator>

#include "base/crc32c.h"
#include "snapshot/restorer.h"

namespace unreft::snapshot {

absl::StatusOr<StagedReader> StagedReader::Create(const Plan& plan,
                                                  std::shared_ptr<Segment> staging,
                                                  std::span<const BoundTensor> targets,
                                                  DeviceCopier& copier, uint32_t bad_blocks_max) {
  absl::StatusOr<std::vector<TargetRange>> gaps = FindGaps(plan, targets);
  if (!gaps.ok()) return gaps.status();
  const std::span<const std::byte> mapped = staging->bytes();
  if (mapped.size() < plan.staging_bytes) {
    return absl::DataLossError(
        fmt::format("segment {}: what other nodes hold needs {} bytes of it, found {}",
                    plan.staging_segment, plan.staging_bytes, mapped.size()));
  }
  StagedReader reader(std::move(staging), mapped.first(plan.staging_bytes), plan.staged_bytes,
                      targets, copier, bad_blocks_max);
  for (const TargetRange& gap : *gaps) reader.missing_[{gap.target, gap.begin}] = gap.end;
  return reader;
}

absl::StatusOr<std::optional<StagedDone>> StagedReader::Take(const Staged& staged) {
  if (absl::Status status = staged.status.ToStatus(); !status.ok()) return status;
  std::optional<StagedDone> answer;
  if (staged.bytes > 0 || !staged.pieces.empty()) {
    absl::StatusOr<StagedDone> taken = TakeBlock(staged);
    if (!taken.ok()) return taken.status();
    answer = *std::move(taken);
  }
  last_ = last_ || staged.last;
  // What did not verify may come again after the last.
  if (last_ && copied_ < bytes_ && bad_.empty()) {
    return absl::DataLossError(fmt::format(
        "{} bytes of other nodes were needed, {} came, and no more will", bytes_, copied_));
  }
  return answer;
}

absl::StatusOr<StagedDone> StagedReader::TakeBlock(const Staged& staged) {
  if (absl::Status status = CheckBlock(staged); !status.ok()) return status;
  const std::span<const std::byte> block = ring_.subspan(staged.offset, staged.bytes);
  const std::pair first(staged.pieces[0].target, staged.pieces[0].target_offset);
  StagedDone answer{.request = staged.request, .offset = staged.offset};
  if (const uint32_t found = Crc32c(block); found != staged.crc) {
    absl::Status bad =
        absl::DataLossError(fmt::format("a block of another node, {} bytes that were staged at {}, "
                                        "needs CRC {:08x}, found {:08x}",
                                        staged.bytes, staged.offset, staged.crc, found));
    if (bad_blocks_left_ == 0) return bad;
    --bad_blocks_left_;
    bad_.insert(first);
    answer.status = bad;
    return answer;
  }
  std::vector<CopyOp> ops;
  for (size_t i = 0; i < staged.pieces.size(); ++i) {
    const WirePiece& piece = staged.pieces[i];
    if (absl::Status status = Claim(piece, i, staged.bytes); !status.ok()) return status;
    ops.push_back({block.data() + piece.source_offset,
                   targets_[piece.target].data + piece.target_offset, piece.bytes,
                   targets_[piece.target].on_device()});
  }
  bad_.erase(first);
  if (absl::Status status = copier_.Restore(ops); !status.ok()) return status;
  return answer;
}

absl::Status StagedReader::CheckBlock(const Staged& staged) const {
  if (staged.offset > ring_.size() || staged.bytes > ring_.size() - staged.offset) {
    return absl::InvalidArgumentError(fmt::format("staged block [{}, +{}) of a staging of {} bytes",
                                                  staged.offset, staged.bytes, ring_.size()));
  }
  if (staged.pieces.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("staged block [{}, +{}) has no pieces", staged.offset, staged.bytes));
  }
  return absl::OkStatus();
}

// Takes the piece's bytes out of what is missing.
absl::Status StagedReader::Claim(const WirePiece& piece, size_t index, uint64_t block_bytes) {
  const auto refuse = [&](std::string why) {
    return absl::InvalidArgumentError(fmt::format(
        "staged piece {}: {} bytes from {} of a block of {} to {} of tensor {}: {}", index,
        piece.bytes, piece.source_offset, block_bytes, piece.target_offset, piece.target, why));
  };
  if (piece.source_offset > block_bytes || piece.bytes > block_bytes - piece.source_offset) {
    return refuse("outside the block");
  }
  if (piece.target >= targets_.size()) {
    return refuse(fmt::format("there are {} tensors", targets_.size()));
  }
  const uint64_t bytes = ShardBytes(targets_[piece.target].spec);
  if (piece.target_offset > bytes || piece.bytes > bytes - piece.target_offset) {
    return refuse(fmt::format("tensor {} has {} bytes", targets_[piece.target].spec.name, bytes));
  }
  if (piece.bytes == 0) return absl::OkStatus();
  if (piece.bytes > bytes_ - copied_) {
    return absl::DataLossError(
        fmt::format("{} bytes of other nodes were needed, {} came with "
                    "piece {}",
                    bytes_, copied_ + piece.bytes, index));
  }
  const uint64_t end = piece.target_offset + piece.bytes;
  // The last range that begins at or before the piece.
  auto it = missing_.upper_bound({piece.target, piece.target_offset});
  if (it == missing_.begin()) return refuse("not missing there");
  it = std::prev(it);
  const auto [target, begin] = it->first;
  const uint64_t range_end = it->second;
  if (target != piece.target || range_end < end) return refuse("not missing there");
  missing_.erase(it);
  if (begin < piece.target_offset) missing_[{target, begin}] = piece.target_offset;
  if (end < range_end) missing_[{target, end}] = range_end;
  copied_ += piece.bytes;
  return absl::OkStatus();
}

}  // namespace unreft::snapshot
