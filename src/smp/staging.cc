#include "smp/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

constexpr int kSentAgainMax = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(NodeState& state, RankSession& session,
                                                         BlockReader& reader, uint64_t request,
                                                         std::vector<StagedPiece> pieces) {
  std::unique_ptr<Staging> staging(new Staging(state, session, reader, request));
  staging->Cut(pieces);
  if (absl::Status status = staging->Open(staging->todo_.size()); !status.ok()) return status;
  return staging;
}

Staging::Staging(NodeState& state, RankSession& session, BlockReader& reader, uint64_t request)
    : state_(state), session_(session), reader_(reader), request_(request) {}

Staging::~Staging() {
  if (segment_ != nullptr) (void)state_.seams.segments.Remove(name_);
}

absl::Status Staging::Open(uint64_t blocks) {
  const uint64_t block_bytes = state_.options.block_bytes;
  const uint64_t places = std::clamp<uint64_t>(state_.options.restore_staging_bytes / block_bytes,
                                               1, std::max<uint64_t>(blocks, 1));
  // Another for each plan: reads for an earlier one may still land in its segment.
  name_ = fmt::format("{}staging.{}.{}.{}.{}", state_.prefix, session_.rank(), session_.life().pid,
                      session_.life().start_time, request_);
  (void)state_.seams.segments.Remove(name_);
  absl::StatusOr<std::unique_ptr<Segment>> segment =
      state_.seams.segments.Create(name_, places * block_bytes);
  if (!segment.ok()) return segment.status();
  segment_ = *std::move(segment);
  for (uint64_t place = 0; place < places; ++place) free_.push_back(place * block_bytes);
  return absl::OkStatus();
}

// The pieces by the blocks that they lie in.
void Staging::Cut(const std::vector<StagedPiece>& pieces) {
  const uint64_t block_bytes = state_.options.block_bytes;
  std::map<std::pair<Rank, uint64_t>, std::vector<WirePiece>> by_block;
  for (const StagedPiece& piece : pieces) {
    piece_bytes_ += piece.bytes;
    for (uint64_t at = 0; at < piece.bytes;) {
      const uint64_t slab_offset = piece.slab_offset + at;
      const uint64_t in_block = slab_offset % block_bytes;
      const uint64_t length = std::min(piece.bytes - at, block_bytes - in_block);
      by_block[{piece.rank, slab_offset / block_bytes}].push_back(
          {0, piece.target, in_block, piece.target_offset + at, length});
      at += length;
    }
  }
  for (auto& [where, wire_pieces] : by_block) {
    todo_.push_back({where.first, where.second, std::move(wire_pieces), 0});
  }
}

void Staging::Start() {
  if (segment_->bytes().empty()) return;
  // Reserving its pages takes a while: off this thread, and before a byte is touched.
  auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
  state_.seams.pool.Submit(
      [segment = segment_, status] { *status = segment->Reserve(0, segment->bytes().size()); },
      state_.seams.executor,
      [this, alive = std::weak_ptr(alive_), status] {
        if (alive.expired()) return;
        if (!status->ok()) return Fail(*status);
        RunRules();
      });
}

void Staging::RunRules() {
  if (ended_) return;
  const uint64_t window = std::max<uint64_t>(1, 4 * state_.options.protect_window);
  while (!todo_.empty() && !free_.empty() && reading_ < window) {
    const uint64_t offset = free_.front();
    free_.pop_front();
    Block block = std::move(todo_.front());
    todo_.pop_front();
    ReadInto(offset, std::move(block));
  }
  if (!todo_.empty() || reading_ > 0 || !with_trainer_.empty()) return;
  ended_ = true;
  Staged end;
  end.request = request_;
  end.last = true;
  session_.Send(end);
}

void Staging::ReadInto(uint64_t offset, Block block) {
  ++reading_;
  const auto into = segment_->bytes().subspan(offset, state_.options.block_bytes);
  const Rank rank = block.rank;
  const uint64_t number = block.block;
  reader_.Read(rank, number, into, segment_,
               [this, alive = std::weak_ptr(alive_), offset,
                block = std::move(block)](absl::Status status) mutable {
                 if (!alive.expired()) OnRead(offset, std::move(block), status);
               });
}

void Staging::OnRead(uint64_t offset, Block block, const absl::Status& status) {
  --reading_;
  if (ended_) return;
  if (!status.ok()) return Fail(status);
  Staged staged;
  staged.request = request_;
  staged.offset = offset;
  staged.bytes = state_.options.block_bytes;
  staged.crc = reader_.CrcOf(block.rank, block.block);
  staged.pieces = block.pieces;
  with_trainer_[offset] = std::move(block);
  session_.Send(std::move(staged));
  RunRules();
}

void Staging::OnDone(const StagedDone& done) {
  const auto it = with_trainer_.find(done.offset);
  if (ended_ || done.request != request_ || it == with_trainer_.end()) return;
  Block block = std::move(it->second);
  with_trainer_.erase(it);
  const absl::Status status = done.status.ToStatus();
  if (status.ok()) {
    free_.push_back(done.offset);
    return RunRules();
  }
  if (++block.sent_again > kSentAgainMax) return Fail(status);
  state_.seams.log.Warn("rank {}: block {} of rank {} is staged again: {}", session_.rank(),
                        block.block, block.rank, status.message());
  ReadInto(done.offset, std::move(block));
}

void Staging::Fail(const absl::Status& status) {
  ended_ = true;
  state_.seams.log.Error("rank {}: its restore failed: {}", session_.rank(), status.message());
  Staged failed;
  failed.request = request_;
  failed.status = status;
  session_.Send(failed);
}

}  // namespace unreft::smp
