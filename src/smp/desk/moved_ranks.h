// MovedRanks: those that left slots on this node and train on another by now, or not at all, as
// trainers were placed elsewhere or a fresh start has fewer of them. What they left is the only
// slab of the committed version until the next commit, then of the step-back version, and then
// memory that the ranks of this node lack.
#pragma once

#include "base/ids.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

class MovedRanks {
 public:
  explicit MovedRanks(NodeState& state) : state_(state) {}

  // A decision was made for so many ranks. Of a rank that trains elsewhere no slot is kept that
  // holds nothing. If another number of ranks saved what is restored, this goes for every rank that
  // has not registered yet, since what it captures next is of another size; if as many did, for
  // those whose slots were made for an attempt of another number in between.
  void OnRestored(uint64_t world);
  // Of every commit. Those without a session that did not capture `version` here lose their free
  // slots and what is older than the commit before, unless it is pinned.
  void OnCommitted(Version version);
  // Nothing that was captured is of use any more: those without a session have no slots, either.
  void OnFreshStart();

 private:
  bool IsMoved(Rank rank, Version committed);

  NodeState& state_;
  Version newest_;  // commit that was told of
};

}  // namespace unreft::smp
