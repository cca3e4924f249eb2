// Staging: bytes of other nodes on their way to one rank that restores (docs/formats/
// local_session.md, Staged).
//
// The blocks that the rank needs are read one after the other into places of the node's staging
// area, which its trainer maps; each is told by its number, and its place is given back when the
// trainer says that it has copied what its plan wants of it.
#pragma once

#include <absl/status/status.h>

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/desk/rank_session.h"
#include "smp/memory/staging_area.h"
#include "smp/restore/block_reader.h"

namespace unreft::smp {

// What a rank's plan wants of other nodes: the pieces of its staged sources.
struct StagingOrder {
  uint64_t request = 0;  // of the plan
  std::span<const PlanSource> sources;
  std::span<const PlanPiece> pieces;  // of all sources, in their order
  bool reads_pages = true;            // else each block is told with its pieces

  uint64_t bytes() const;
};

// Single-threaded on the node's executor. The session and the reader outlive it; what is on its way
// into a place may land after it is gone, and keeps the place as long.
class Staging {
 public:
  Staging(NodeState& state, RankSession& session, BlockReader& reader,
          std::shared_ptr<StagingPlaces> places, const StagingOrder& order);
  // What was sent and not answered stays as it is until the trainer's life ends, as it may still be
  // copied.
  ~Staging();

  uint64_t segment_bytes() const { return places_->bytes(); }

  void Start() { RunRules(); }
  // The trainer copies nothing of it any more, and wants nothing more of it.
  void OnTrainerDone() { with_trainer_.clear(); }
  void OnDone(const StagedDone& done);

 private:
  struct Block {
    uint32_t source = 0;
    Rank rank;
    uint64_t block = 0;
    std::vector<WirePiece> pieces;  // for a client that reads no pages
    int sent_again = 0;
  };

  struct Filled {
    StagingPlaces::Place place;
    Block block;
  };

  void Queue(const StagingOrder& order);
  void RunRules();
  void ReadInto(StagingPlaces::Place place, Block block);
  void OnRead(StagingPlaces::Place place, Block block, const absl::Status& status);
  void Fail(const absl::Status& status);

  NodeState& state_;
  RankSession& session_;
  const ProcessLife life_;
  BlockReader& reader_;
  const std::shared_ptr<StagingPlaces> places_;
  uint64_t borrower_ = 0;
  const uint64_t request_;
  std::deque<Block> todo_;
  std::map<uint64_t, Filled> with_trainer_;  // by offset
  uint64_t reading_ = 0;
  bool ended_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
