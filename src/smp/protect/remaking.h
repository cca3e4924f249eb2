// Remaking: makes this node's share in a restored version's protection anew, after a loss.
//
// Nobody announces such a version: what its guard is to hold is in the record of another member. It
// waits for a guard to become free: to have its pages, or to be of no use any more.
#pragma once

#include <map>
#include <vector>

#include "smp/desk/node_state.h"
#include "smp/protect/guard_maker.h"
#include "smp/protect/guard_share.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Remaking {
 public:
  // All references outlive this.
  Remaking(NodeState& state, NodeSlot self, GuardMaker& maker)
      : state_(state), self_(self), maker_(maker) {}

  // Of the group's slabs as that record has them. Does nothing while the version has a guard that
  // is being filled. `description_bytes`: by member, what its description takes at most.
  void Begin(Version version, const GuardRecord& of_another,
             const std::vector<uint64_t>& description_bytes);
  void Forget(Version version);
  // That version and those before it.
  void ForgetUpTo(Version version);

  // Goes on with what waits, and ends what is done or of no use any more.
  void RunRules();

 private:
  NodeState& state_;
  const NodeSlot self_;
  GuardMaker& maker_;
  std::map<Version, GuardShare> shares_;
};

}  // namespace unreft::smp
