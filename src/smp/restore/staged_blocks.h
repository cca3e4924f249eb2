// StagedBlocks: the blocks of other nodes that lie in this node's staging area. Each is fetched
// once for all who take it as long as it lies there (docs/protocol.md, rule 31).
//
// Who takes blocks has a share of the places, one at least, whoever came first, and holds no more
// blocks than that; a block that several hold counts for each of them. A block that nobody holds is
// in nobody's way: it can be taken until its place is lent for another. Those that other nodes will
// ask for, too, stay longest, as many as the share that is left for them.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "smp/memory/staging_area.h"

namespace unreft::smp {

struct BlockId {
  Rank rank;
  uint64_t block = 0;

  auto operator<=>(const BlockId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const BlockId& id) {
    return H::combine(std::move(h), id.rank.value, id.block);
  }
};

// Single-threaded on the node's executor. What is on its way into a place may land after it is
// gone, and keeps the place as long.
class StagedBlocks {
 public:
  struct Block {
    BlockId id;
    std::shared_ptr<Segment> segment;
    StagingPlaces::Place place;
  };
  // The block stays as it is while this is held, also when the StagedBlocks are gone. To be let go
  // of in turns of the executor.
  using Hold = std::shared_ptr<const Block>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<Hold>)>;

  struct Events {
    // Another has begun to fetch it: whoever wants it too had better take it soon.
    absl::AnyInvocable<void(BlockId)> on_fetch;
    // In turns of its own: there may be room for a block, or never will (StagingPlaces::status).
    absl::AnyInvocable<void()> on_room;
  };

  // Reads a block into `into`, in which `keep` holds it, and calls `done` once (BlockReader::Read).
  using Fetcher =
      absl::AnyInvocable<void(BlockId id, std::span<std::byte> into, std::shared_ptr<void> keep,
                              absl::AnyInvocable<void(absl::Status)> done)>;

  // What is told of a block that has been fetched: whether other nodes will ask for it.
  using IsForOthers = std::function<bool(BlockId)>;

  // `is_for_others`: null where there is none such, and no share is left for others.
  StagedBlocks(Executor& executor, Fetcher fetcher, std::shared_ptr<StagingPlaces> places,
               IsForOthers is_for_others)
      : executor_(executor),
        fetcher_(std::move(fetcher)),
        remembered_(std::move(places)),
        is_for_others_(std::move(is_for_others)) {}

  // Null when the area has been removed, which it is not while anybody takes blocks.
  std::shared_ptr<StagingPlaces> places() const { return remembered_.lock(); }

  // As long as its places are there.
  uint64_t Join(Events events);
  // What it holds it goes on holding.
  void Leave(uint64_t taker);

  // False when the taker holds its share, or there is no place: it is told when there may be room.
  // Else `done` runs once, inline only where fetching ends inline: with the block, or with why it
  // could not be had.
  bool Take(uint64_t taker, BlockId id, Done done);

  // Those that are there or on their way.
  bool Has(BlockId id) const { return blocks_.contains(id); }
  std::vector<BlockId> Present() const;

  // Its bytes are not what they ought to be: for who takes it next it is fetched again.
  void Forget(const Hold& block);

 private:
  struct Waiting {
    Hold hold;
    Done done;
  };
  struct Entry {
    uint64_t offset = 0;
    uint64_t lending = 0;
    std::weak_ptr<Block> block;  // while it is held
    bool is_there = false;
    bool is_kept = false;          // for other nodes
    std::vector<Waiting> waiting;  // until it is there
  };
  struct Taker {
    uint64_t held = 0;
    absl::AnyInvocable<void(BlockId)> on_fetch;
  };

  using Entries = absl::flat_hash_map<BlockId, Entry>;

  // Of one that is there or on its way; null when there is none, or its place was lent for another.
  std::shared_ptr<Block> Lock(uint64_t taker, BlockId id);
  // Null when no place is free.
  std::shared_ptr<Block> Place(uint64_t taker, BlockId id);
  std::shared_ptr<Block> Lay(BlockId id, StagingPlaces::Place place);
  void Erase(Entries::iterator entry);
  uint64_t Share() const;
  void KeepForOthers(BlockId id);
  void Fetch(uint64_t taker, const std::shared_ptr<Block>& block);
  void OnFetched(const std::shared_ptr<Block>& block, const absl::Status& status);
  Hold HoldFor(uint64_t taker, std::shared_ptr<Block> block);

  Executor& executor_;
  Fetcher fetcher_;
  const std::weak_ptr<StagingPlaces> remembered_;
  const IsForOthers is_for_others_;
  std::shared_ptr<StagingPlaces> places_;  // while anybody takes blocks
  std::map<uint64_t, Taker> takers_;
  Entries blocks_;
  absl::flat_hash_map<uint64_t, BlockId> lies_at_;  // by the offset of its place
  std::deque<BlockId> kept_;  // for other nodes, or were so; which was fetched first is the first
  Lifetime lifetime_;
};

}  // namespace unreft::smp
