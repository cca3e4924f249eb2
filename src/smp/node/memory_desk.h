// MemoryDesk: whether the node has room for all that it must hold once the next attempt has begun
// (docs/operations.md, "memory" of the local session).
//
// What its ranks had lies here; of a node whose memory is new it is asked of those that keep the
// replicas of its slabs.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/restore/restore_catalog.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class MemoryDesk {
 public:
  // Both outlive this.
  MemoryDesk(NodeState& state, Member& member);
  ~MemoryDesk();

  // Replies within call_timeout, with what is known by then.
  void Answer(absl::AnyInvocable<void(AdminReply)> reply);

 private:
  void Look();
  bool IsInJob() const;
  bool LooksForLostSlabs();
  void OnKnown(bool known);

  NodeState& state_;
  Member& member_;
  std::vector<absl::AnyInvocable<void(AdminReply)>> asking_;
  std::unique_ptr<RestoreCatalog> catalog_;  // while somebody asks, of this node's lost slabs
  Time deadline_{};
  TimerId timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
