// Staging: bytes of other nodes on their way to one rank that restores (docs/formats/
// local_session.md, Staged).
//
// The blocks that the rank needs are read one after the other into places of the node's staging
// area, which its trainer maps; each is told with what of it goes where, and its place is given
// back when the trainer says that it has copied.
#pragma once

#include <absl/status/status.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/desk/rank_session.h"
#include "smp/memory/staging_area.h"
#include "smp/restore/block_reader.h"

namespace unreft::smp {

// Bytes of a rank's slab that go to a target of the one that restores.
struct StagedPiece {
  Rank rank;
  uint32_t target = 0;
  uint64_t slab_offset = 0;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
};

// Single-threaded on the node's executor. The session and the reader outlive it; what is on its way
// into a place may land after it is gone, and keeps the place as long.
class Staging {
 public:
  Staging(NodeState& state, RankSession& session, BlockReader& reader,
          std::shared_ptr<StagingPlaces> places, uint64_t request,
          const std::vector<StagedPiece>& pieces);
  // What was sent and not answered stays as it is until the trainer's life ends, as it may still be
  // copied.
  ~Staging();

  uint64_t segment_bytes() const { return places_->bytes(); }
  uint64_t piece_bytes() const { return piece_bytes_; }

  void Start() { RunRules(); }
  // The trainer copies nothing of it any more, and wants nothing more of it.
  void OnTrainerDone() { with_trainer_.clear(); }
  void OnDone(const StagedDone& done);

 private:
  struct Block {
    Rank rank;
    uint64_t block = 0;
    std::vector<WirePiece> pieces;
    int sent_again = 0;
  };

  struct Filled {
    StagingPlaces::Place place;
    Block block;
  };

  void Cut(const std::vector<StagedPiece>& pieces);
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
  uint64_t piece_bytes_ = 0;
  std::deque<Block> todo_;
  std::map<uint64_t, Filled> with_trainer_;  // by offset
  uint64_t reading_ = 0;
  bool ended_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
