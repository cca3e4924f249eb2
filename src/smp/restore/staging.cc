#include "smp/restore/staging.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/format.h"
#include "smp/restore/earlier_library.h"

namespace unreft::smp {
namespace {

constexpr int kSentAgainMax = 3;

}  // namespace

uint64_t StagingOrder::bytes() const {
  uint64_t bytes = 0;
  for (const PlanPiece& piece : pieces) {
    if (sources[piece.source].is_staged()) bytes += piece.total_bytes();
  }
  return bytes;
}

Staging::Staging(NodeState& state, RankSession& session, BlockReader& reader,
                 std::shared_ptr<StagingPlaces> places, const StagingOrder& order)
    : state_(state),
      session_(session),
      life_(session.life()),
      reader_(reader),
      places_(std::move(places)),
      request_(order.request) {
  Queue(order);
  borrower_ = places_->Join([this] { RunRules(); });
}

Staging::~Staging() {
  places_->Leave(borrower_);
  std::vector<StagingPlaces::Place> with_trainer;
  for (auto& [offset, filled] : with_trainer_) with_trainer.push_back(std::move(filled.place));
  state_.staging->KeepUntilEnd(life_, std::move(with_trainer));
}

void Staging::Queue(const StagingOrder& order) {
  const uint64_t block_bytes = state_.options.block_bytes;
  for (uint32_t source = 0; source < order.sources.size(); ++source) {
    if (!order.sources[source].is_staged()) continue;
    const std::span<const PlanPiece> pieces = PiecesOf(order.pieces, source);
    std::map<uint64_t, std::vector<WirePiece>> rows;
    if (!order.reads_pages) rows = RowsByBlock(pieces, block_bytes);
    for (const uint64_t block : BlocksOf(pieces, block_bytes)) {
      todo_.push_back({source, order.sources[source].rank, block, std::move(rows[block])});
    }
  }
}

void Staging::RunRules() {
  if (ended_) return;
  if (!places_->status().ok()) return Fail(places_->status());
  const uint64_t window = std::max<uint64_t>(1, 4 * state_.options.protect_window);
  while (!todo_.empty() && reading_ < window) {
    std::optional<StagingPlaces::Place> place = StagingPlaces::Take(places_, borrower_);
    if (!place) break;
    Block block = std::move(todo_.front());
    todo_.pop_front();
    ReadInto(*std::move(place), std::move(block));
  }
  if (!todo_.empty() || reading_ > 0 || !with_trainer_.empty()) return;
  ended_ = true;
  places_->Leave(borrower_);
  Staged end;
  end.request = request_;
  end.last = true;
  session_.Send(end);
}

void Staging::ReadInto(StagingPlaces::Place place, Block block) {
  ++reading_;
  const auto into = place.bytes();
  const Rank rank = block.rank;
  const uint64_t number = block.block;
  reader_.Read(rank, number, into, places_->segment(),
               lifetime_.Bind([this, place = std::move(place),
                               block = std::move(block)](absl::Status status) mutable {
                 OnRead(std::move(place), std::move(block), status);
               }));
}

void Staging::OnRead(StagingPlaces::Place place, Block block, const absl::Status& status) {
  --reading_;
  if (ended_) return;
  if (!status.ok()) return Fail(status);
  Staged staged;
  staged.request = request_;
  staged.offset = place.offset();
  staged.bytes = state_.options.block_bytes;
  staged.crc = reader_.CrcOf(block.rank, block.block);
  staged.pieces = block.pieces;
  staged.source = block.source;
  staged.block = block.block;
  with_trainer_.emplace(staged.offset, Filled{std::move(place), std::move(block)});
  session_.Send(std::move(staged));
  RunRules();
}

void Staging::OnDone(const StagedDone& done) {
  const auto it = with_trainer_.find(done.offset);
  if (done.request != request_ || it == with_trainer_.end()) return;
  Filled filled = std::move(it->second);
  with_trainer_.erase(it);
  if (ended_) return;
  const absl::Status status = done.status.ToStatus();
  // Its place goes back: the next is had in a turn of its own.
  if (status.ok()) return todo_.empty() ? RunRules() : void();
  Block& block = filled.block;
  if (++block.sent_again > kSentAgainMax) return Fail(status);
  state_.seams.log.Warn("rank {}: block {} of rank {} is staged again: {}", session_.rank(),
                        block.block, block.rank, status.message());
  ReadInto(std::move(filled.place), std::move(block));
}

void Staging::Fail(const absl::Status& status) {
  ended_ = true;
  places_->Leave(borrower_);  // its share is the others' from now on
  state_.seams.log.Error("rank {}: its restore failed: {}", session_.rank(), status.message());
  Staged failed;
  failed.request = request_;
  failed.status = status;
  session_.Send(failed);
}

}  // namespace unreft::smp
