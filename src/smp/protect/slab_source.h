// SlabSource: what this node's slots give to other nodes: blocks, as soon as they are published and
// checksummed, and everything else about a slab once it is sealed.
//
// A request for what is still being captured waits until it is there; one for what this node does
// not have is answered NotFound at once. Only the reader sees that a slab has rotted before it was
// protected, and would read it for ever: when it says so, the slab is verified here, and is
// quarantined if it has.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <list>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/lifetime.h"
#include "smp/desk/node_state.h"
#include "smp/memory/slot_verifier.h"
#include "transport/transport.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class SlabSource {
 public:
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>;
  using MetaDone = absl::AnyInvocable<void(absl::StatusOr<MetaReply>)>;

  explicit SlabSource(NodeState& state);

  // Of kind DATA. ResourceExhausted when too many wait already.
  void OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done);

  // Of this node's own slabs: of the ranks that it names, or of all that are sealed when it names
  // none.
  void OnMeta(const MetaRequest& request, MetaDone done);

  // A slot has more blocks ready, was sealed or given up.
  void OnChange();

 private:
  struct WaitingRead {
    ReadRequest request;
    uint64_t bytes = 0;
    ReadDone done;
  };
  struct WaitingMeta {
    Version version;
    std::vector<Rank> ranks;
    MetaDone done;
  };

  Slot* SlotOf(Version version, Rank rank);
  // Whether it was answered.
  bool TryRead(WaitingRead& waiting);
  bool TryMeta(WaitingMeta& waiting);
  // Verifies the slot if it is sealed, and not already being verified.
  void LookAt(const Slot& slot);

  NodeState& state_;
  SlotVerifier verifier_;
  std::set<std::pair<SlotId, Generation>> verifying_;
  std::list<WaitingRead> reads_;
  std::list<WaitingMeta> metas_;
  Lifetime lifetime_;
};

// For ReadSource::hold: keeps the segment mapped until the bytes have left, and calls `end_read` in
// a turn then. Whoever holds it may let go of it on any thread.
std::shared_ptr<const void> HoldUntilRead(Executor& executor, std::shared_ptr<Segment> segment,
                                          absl::AnyInvocable<void()> end_read);

// Everything about a sealed slot but its data. DataLoss when its seal has rotted.
absl::StatusOr<SlabDescription> DescribeSlab(const Slot& slot);

// Whether the bytes are those that their CRCs were taken of. DataLoss naming rank and part.
absl::Status CheckSlabDescription(const SlabDescription& description);

}  // namespace unreft::smp
