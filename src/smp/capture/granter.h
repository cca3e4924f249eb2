// Granter: which slot a rank is offered for its next snapshot, and when.
#pragma once

#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Granter {
 public:
  explicit Granter(NodeState& state) : state_(state) {}

  // Offers a slot on the rank's control page, unless one is offered. The caller has found that the
  // rank's registration may be captured.
  void EnsureGrant(RankSession& session);

  // Takes back what is offered. What the trainer has claimed by then stays its own.
  void Revoke(RankSession& session);
  void RevokeAll();

  // After a restart of the daemon: what its predecessor offered is known from the control page.
  void Adopt(RankSession& session);

  // The slot of that generation, if it was granted to this life of the rank; else null.
  Slot* SlotOf(const RankSession& session, SlotId id, Generation generation) const;

  // The rank skipped a snapshot for want of a slot: for a while its step-back version gives way.
  static void HurryAfterSkip(RankSession& session);

  // Steps of that timeline before it are skipped.
  void OnCaptureFrom(Version first);

 private:
  bool MayGrant(RankSession& session) const;
  Slot* GrantFree(RankSession& session);
  Slot* RetireForGrant(RankSession& session);
  bool IsOfNoUse(const Slot& slot) const;
  void TellCaptureFrom(RankSession& session) const;

  NodeState& state_;
  Version capture_from_;
};

}  // namespace unreft::smp
