// Staging: bytes of other nodes on their way to one rank that restores (docs/formats/
// local_session.md, Staged).
//
// The blocks that the rank needs are read one after the other into a bounded segment that its
// trainer maps, each is told with what of it goes where, and its place is used again when the
// trainer says that it has copied.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/segment_store.h"
#include "base/session_frames.h"
#include "smp/block_reader.h"
#include "smp/node_state.h"
#include "smp/rank_session.h"

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
// into the segment may land after it is gone.
class Staging {
 public:
  // ResourceExhausted when there is no memory for the segment.
  static absl::StatusOr<std::unique_ptr<Staging>> Create(NodeState& state, RankSession& session,
                                                         BlockReader& reader, uint64_t request,
                                                         std::vector<StagedPiece> pieces);
  ~Staging();

  uint64_t request() const { return request_; }
  const std::string& segment_name() const { return name_; }
  uint64_t segment_bytes() const { return segment_->bytes().size(); }
  uint64_t piece_bytes() const { return piece_bytes_; }

  void Start();
  void OnDone(const StagedDone& done);

 private:
  struct Block {
    Rank rank;
    uint64_t block = 0;
    std::vector<WirePiece> pieces;
    int sent_again = 0;
  };

  Staging(NodeState& state, RankSession& session, BlockReader& reader, uint64_t request);
  absl::Status Open(uint64_t blocks);
  void Cut(const std::vector<StagedPiece>& pieces);
  void RunRules();
  void ReadInto(uint64_t offset, Block block);
  void OnRead(uint64_t offset, Block block, const absl::Status& status);
  void Fail(const absl::Status& status);

  NodeState& state_;
  RankSession& session_;
  BlockReader& reader_;
  const uint64_t request_;
  std::string name_;
  std::shared_ptr<Segment> segment_;  // shared with reads on their way
  uint64_t piece_bytes_ = 0;
  std::deque<Block> todo_;
  std::deque<uint64_t> free_;               // offsets of places in the segment
  std::map<uint64_t, Block> with_trainer_;  // by offset
  uint64_t reading_ = 0;
  bool ended_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // tells late answers we are gone
};

}  // namespace unreft::smp
