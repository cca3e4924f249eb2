// DecodedSlabs: slabs of a committed version that no node has any more, decoded for whoever copies
// the version (docs/durable_copy.md). Each is a segment of its own, laid out and sealed as a slot
// is. The job does not know of them: nobody restores from them, no report names them, and they go
// with this.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "base/slot_header.h"
#include "recovery/restorable.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/memory/segment_pool.h"
#include "smp/protect/block_reads.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/restore_catalog.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class DecodedSlabs {
 public:
  // The names of the segments, by rank.
  using Segments = std::map<Rank, std::string>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<Segments>)>;

  // Of `version`, which `holders` had, those of `ranks`. `done` is called once, in a turn of its
  // own, and not after Cancel: ResourceExhausted, with the numbers, where this node has no room for
  // them; Unavailable where nobody tells what they were; else what a block could not be decoded
  // for. All references outlive this; `own`: blocks of this node.
  DecodedSlabs(NodeState& state, Peers& peers, const meta::JobRecords& job, BlockReads::Own own,
               Version version, std::vector<recovery::SlabHolder> holders, std::set<Rank> ranks,
               Done done);
  ~DecodedSlabs();

  void Cancel();
  // Nothing is on its way any more, so that this may go.
  bool idle() const { return reader_ == nullptr || reader_->idle(); }

  // Of the blocks: decoded, and in all, once that is known.
  uint64_t decoded_bytes() const { return decoded_ * state_.options.block_bytes; }
  uint64_t bytes() const { return blocks_ * state_.options.block_bytes; }

 private:
  struct Slab {
    SegmentId id;
    std::shared_ptr<Segment> segment;
    std::optional<SlotView> view;
    uint64_t blocks = 0;
    uint64_t next = 0;
    uint64_t done = 0;
  };

  void OnCatalog();
  absl::Status Make(Rank rank, Slab& slab);
  void OnPopulated(const absl::Status& status);
  void DecodeMore();
  void OnBlock(Rank rank, const absl::Status& status);
  void End(absl::Status status);

  NodeState& state_;
  Peers& peers_;
  const meta::JobRecords& job_;
  BlockReads::Own own_;
  Done done_;  // null once it was called, or is not to be
  std::map<Rank, Slab> slabs_;
  std::unique_ptr<RestoreCatalog> catalog_;
  std::unique_ptr<BlockReader> reader_;
  uint64_t unpopulated_ = 0;  // slabs
  uint64_t running_ = 0;      // blocks
  uint64_t decoded_ = 0;
  uint64_t blocks_ = 0;
  TimerId timer_ = TimerId::kNone;  // until all is told of the slabs
  Lifetime lifetime_;
};

}  // namespace unreft::smp
