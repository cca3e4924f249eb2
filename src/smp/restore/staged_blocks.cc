#include "smp/restore/staged_blocks.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/format.h"

namespace unreft::smp {

uint64_t StagedBlocks::Join(Events events) {
  places_ = remembered_.lock();
  UNREFT_CHECK(places_ != nullptr, "the places that blocks are taken to are gone");
  const uint64_t taker = places_->Join(std::move(events.on_room));
  takers_.emplace(taker, Taker{0, std::move(events.on_fetch)});
  return taker;
}

void StagedBlocks::Leave(uint64_t taker) {
  if (takers_.erase(taker) == 0) return;
  places_->Leave(taker);
  if (takers_.empty()) places_.reset();
}

std::vector<BlockId> StagedBlocks::Present() const {
  std::vector<BlockId> ids;
  for (const auto& [id, entry] : blocks_) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

uint64_t StagedBlocks::Share() const {
  const uint64_t shares = takers_.size() + (is_for_others_ ? 1 : 0);
  return std::max<uint64_t>(1, places_->count() / shares);
}

bool StagedBlocks::Take(uint64_t taker, BlockId id, Done done) {
  const auto found = takers_.find(taker);
  UNREFT_CHECK(found != takers_.end(), "taker {} has left", taker);
  if (found->second.held >= Share()) return false;
  std::shared_ptr<Block> block = Lock(taker, id);
  const bool is_new = block == nullptr;
  if (is_new) block = Place(taker, id);
  if (block == nullptr) return false;
  Entry& entry = blocks_.at(id);
  Waiting waiting{HoldFor(taker, block), std::move(done)};
  if (entry.is_there) {
    executor_.Post(lifetime_.Bind(
        [waiting = std::move(waiting)]() mutable { waiting.done(std::move(waiting.hold)); }));
    return true;
  }
  entry.waiting.push_back(std::move(waiting));
  if (is_new) Fetch(taker, block);
  return true;
}

std::shared_ptr<StagedBlocks::Block> StagedBlocks::Lock(uint64_t taker, BlockId id) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return nullptr;
  const Entry& entry = found->second;
  if (auto held = entry.block.lock()) return held;
  auto place = StagingPlaces::TakeAgain(places_, taker, entry.offset, entry.lending);
  if (!place) Erase(found);
  return place ? Lay(id, *std::move(place)) : nullptr;
}

std::shared_ptr<StagedBlocks::Block> StagedBlocks::Place(uint64_t taker, BlockId id) {
  auto place = StagingPlaces::Take(places_, taker, [this](uint64_t offset) {
    const auto at = lies_at_.find(offset);
    return at != lies_at_.end() && blocks_.at(at->second).is_kept;
  });
  if (!place) return nullptr;
  if (const auto before = lies_at_.find(place->offset()); before != lies_at_.end()) {
    blocks_.erase(before->second);
  }
  lies_at_[place->offset()] = id;
  blocks_[id] = {};
  return Lay(id, *std::move(place));
}

std::shared_ptr<StagedBlocks::Block> StagedBlocks::Lay(BlockId id, StagingPlaces::Place place) {
  auto block = std::make_shared<Block>(Block{id, places_->segment(), std::move(place)});
  Entry& entry = blocks_.at(id);
  entry.offset = block->place.offset();
  entry.lending = block->place.lending();
  entry.block = block;
  return block;
}

void StagedBlocks::Fetch(uint64_t taker, const std::shared_ptr<Block>& block) {
  for (auto& [id, other] : takers_) {
    if (id != taker) other.on_fetch(block->id);
  }
  places_->Wake();
  fetcher_(block->id, block->place.bytes(), block,
           lifetime_.Bind([this, block](const absl::Status& status) { OnFetched(block, status); }));
}

void StagedBlocks::OnFetched(const std::shared_ptr<Block>& block, const absl::Status& status) {
  const auto found = blocks_.find(block->id);
  UNREFT_CHECK(found != blocks_.end() && found->second.block.lock() == block,
               "block {} of rank {} went before it was there", block->id.block, block->id.rank);
  found->second.is_there = true;
  if (status.ok() && !takers_.empty() && is_for_others_ && is_for_others_(block->id)) {
    KeepForOthers(block->id);
  }
  std::vector<Waiting> waiting = std::exchange(found->second.waiting, {});
  if (!status.ok()) Forget(block);
  const auto token = lifetime_.token();
  for (Waiting& each : waiting) {
    if (token.expired()) return;
    if (status.ok()) {
      each.done(std::move(each.hold));
    } else {
      each.done(status);
    }
  }
}

StagedBlocks::Hold StagedBlocks::HoldFor(uint64_t taker, std::shared_ptr<Block> block) {
  ++takers_.at(taker).held;
  const Block* const held = block.get();
  return {held, [block = std::move(block), release = lifetime_.Bind([this, taker] {
            const auto found = takers_.find(taker);
            if (found != takers_.end()) --found->second.held;
            if (places_ != nullptr) places_->Wake();
          })](const Block*) mutable { release(); }};
}

void StagedBlocks::Forget(const Hold& block) {
  const auto found = blocks_.find(block->id);
  if (found != blocks_.end() && found->second.block.lock() == block) Erase(found);
}

void StagedBlocks::Erase(Entries::iterator entry) {
  lies_at_.erase(entry->second.offset);
  blocks_.erase(entry);
}

void StagedBlocks::KeepForOthers(BlockId id) {
  blocks_.at(id).is_kept = true;
  kept_.push_back(id);
  const uint64_t share = Share();
  while (kept_.size() > share) {
    if (const auto first = blocks_.find(kept_.front()); first != blocks_.end()) {
      first->second.is_kept = false;
    }
    kept_.pop_front();
  }
}

}  // namespace unreft::smp
