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

Staging::Staging(NodeState& state, RankSession& session, const BlockReader& reader,
                 StagedBlocks& blocks, const StagingOrder& order)
    : state_(state),
      session_(session),
      life_(session.life()),
      reader_(reader),
      blocks_(blocks),
      request_(order.request) {
  Queue(order);
  taker_ = blocks_.Join(
      {.on_fetch = [this](BlockId id) { OnOffer(id); }, .on_room = [this] { RunRules(); }});
  for (const BlockId id : blocks_.Present()) OnOffer(id);
}

Staging::~Staging() {
  blocks_.Leave(taker_);
  StagingArea::Holds holds;
  for (auto& [offset, filled] : with_trainer_) holds.push_back(std::move(filled.block));
  state_.staging->KeepUntilEnd(life_, std::move(holds));
}

void Staging::Queue(const StagingOrder& order) {
  const uint64_t block_bytes = state_.options.block_bytes;
  for (const uint32_t source : order.turns) {
    const auto turn = static_cast<uint32_t>(sources_.size());
    const Rank rank = order.sources[source].rank;
    sources_.push_back({source, rank});
    turns_.emplace(rank, turn);
    const std::span<const PlanPiece> pieces = PiecesOf(order.pieces, source);
    std::map<uint64_t, std::vector<WirePiece>> rows;
    if (!order.reads_pages) rows = RowsByBlock(pieces, block_bytes);
    for (const uint64_t block : BlocksOf(pieces, block_bytes)) {
      todo_.emplace(Key{turn, block}, Wanted{std::move(rows[block])});
    }
  }
}

std::optional<Staging::Key> Staging::KeyOf(BlockId id) const {
  const auto turn = turns_.find(id.rank);
  if (turn == turns_.end()) return std::nullopt;
  const Key key{turn->second, id.block};
  return todo_.contains(key) ? std::optional(key) : std::nullopt;
}

void Staging::OnOffer(BlockId id) {
  if (KeyOf(id)) offered_.push_back(id);
}

std::optional<Staging::Key> Staging::Next() {
  for (; !offered_.empty(); offered_.pop_front()) {
    const std::optional<Key> key = KeyOf(offered_.front());
    if (key && blocks_.Has(offered_.front())) return key;
  }
  return todo_.empty() ? std::nullopt : std::optional(todo_.begin()->first);
}

void Staging::RunRules() {
  if (ended_) return;
  const absl::Status& status = blocks_.places()->status();
  if (!status.ok()) return Fail(status);
  const uint64_t window = std::max<uint64_t>(1, 4 * state_.options.protect_window);
  while (!ended_ && on_their_way_.size() < window) {
    const std::optional<Key> next = Next();
    if (!next || !Take(*next)) break;
  }
  if (ended_ || !todo_.empty() || !on_their_way_.empty() || !with_trainer_.empty()) return;
  End();
  Staged end;
  end.request = request_;
  end.last = true;
  session_.Send(end);
}

bool Staging::Take(Key key) {
  const bool is_taken =
      blocks_.Take(taker_, {sources_[key.first].rank, key.second},
                   lifetime_.Bind([this, key](absl::StatusOr<StagedBlocks::Hold> block) {
                     OnTaken(key, std::move(block));
                   }));
  if (is_taken) on_their_way_.insert(todo_.extract(key));
  return is_taken;
}

void Staging::OnTaken(Key key, absl::StatusOr<StagedBlocks::Hold> block) {
  if (ended_) return;
  if (!block.ok()) return Fail(block.status());
  Wanted wanted = std::move(on_their_way_.extract(key).mapped());
  const BlockId id = (*block)->id;
  Staged staged;
  staged.request = request_;
  staged.offset = (*block)->place.offset();
  staged.bytes = state_.options.block_bytes;
  staged.crc = reader_.CrcOf(id.rank, id.block);
  staged.pieces = wanted.pieces;
  staged.source = sources_[key.first].number;
  staged.block = id.block;
  with_trainer_.emplace(staged.offset, WithTrainer{*std::move(block), key, std::move(wanted)});
  session_.Send(std::move(staged));
  RunRules();
}

void Staging::OnDone(const StagedDone& done) {
  const auto it = with_trainer_.find(done.offset);
  if (done.request != request_ || it == with_trainer_.end()) return;
  WithTrainer filled = std::move(it->second);
  with_trainer_.erase(it);
  if (ended_) return;
  const absl::Status status = done.status.ToStatus();
  if (!status.ok()) {
    if (++filled.wanted.sent_again > kSentAgainMax) return Fail(status);
    state_.seams.log.Warn("rank {}: block {} of rank {} is staged again: {}", session_.rank(),
                          filled.key.second, sources_[filled.key.first].rank, status.message());
    blocks_.Forget(filled.block);
    todo_.emplace(filled.key, std::move(filled.wanted));
  }
  // The next is taken in a turn of its own, when its place is known to be free.
  if (todo_.empty()) RunRules();
}

void Staging::Fail(const absl::Status& status) {
  End();
  state_.seams.log.Error("rank {}: its restore failed: {}", session_.rank(), status.message());
  Staged failed;
  failed.request = request_;
  failed.status = status;
  session_.Send(failed);
}

// Its share is the others' from now on.
void Staging::End() {
  ended_ = true;
  blocks_.Leave(taker_);
}

}  // namespace unreft::smp
