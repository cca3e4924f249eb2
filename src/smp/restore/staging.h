// Staging: bytes of other nodes on their way to one rank that restores (docs/formats/
// local_session.md, Staged).
//
// The blocks that the rank needs are read one after the other into the node's staging area, which
// its trainer maps; each is told by its number, and let go of when the trainer says that it has
// copied what its plan wants of it. What another rank of the node has fetched is taken from there
// (staged_blocks.h), before anything that nobody has fetched yet.
#pragma once

#include <absl/status/status.h>

#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/desk/rank_session.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/staged_blocks.h"

namespace unreft::smp {

// What a rank's plan wants of other nodes: the pieces of its staged sources.
struct StagingOrder {
  uint64_t request = 0;  // of the plan
  std::span<const PlanSource> sources;
  std::span<const PlanPiece> pieces;  // of all sources, in their order
  std::vector<uint32_t> turns;        // those that are staged, which is read first the first
  bool reads_pages = true;            // else each block is told with its pieces

  uint64_t bytes() const;
};

// Single-threaded on the node's executor. The session, the reader and the blocks outlive it.
class Staging {
 public:
  Staging(NodeState& state, RankSession& session, const BlockReader& reader, StagedBlocks& blocks,
          const StagingOrder& order);
  // What was sent and not answered stays as it is until the trainer's life ends, as it may still be
  // copied.
  ~Staging();

  void Start() { RunRules(); }
  // The trainer copies nothing of it any more, and wants nothing more of it.
  void OnTrainerDone() { with_trainer_.clear(); }
  void OnDone(const StagedDone& done);

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // the turn of its source, and the block
  struct Source {
    uint32_t number = 0;  // in the plan
    Rank rank;
  };
  struct Wanted {
    std::vector<WirePiece> pieces;  // for a client that reads no pages
    int sent_again = 0;
  };
  struct WithTrainer {
    StagedBlocks::Hold block;
    Key key;
    Wanted wanted;
  };

  void Queue(const StagingOrder& order);
  // The key of what is still to be taken.
  std::optional<Key> KeyOf(BlockId id) const;
  void OnOffer(BlockId id);
  // What others have fetched comes first; none when all has been taken.
  std::optional<Key> Next();
  void RunRules();
  bool Take(Key key);
  void OnTaken(Key key, absl::StatusOr<StagedBlocks::Hold> block);
  void Fail(const absl::Status& status);
  void End();

  NodeState& state_;
  RankSession& session_;
  const ProcessLife life_;
  const BlockReader& reader_;
  StagedBlocks& blocks_;
  uint64_t taker_ = 0;
  const uint64_t request_;
  std::vector<Source> sources_;  // by their turns
  std::map<Rank, uint32_t> turns_;
  std::map<Key, Wanted> todo_;
  std::deque<BlockId> offered_;  // by others, and not looked at yet
  std::map<Key, Wanted> on_their_way_;
  std::map<uint64_t, WithTrainer> with_trainer_;  // by offset
  bool ended_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
