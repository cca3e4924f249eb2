// AttemptInForce: the attempt that the last decision was made for, as its node sees it: whether its
// processes live, and so whether another attempt's may take their place (docs/protocol.md, rule
// 29). Stateless but for the records and the word of who leads, which node_state.h has.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>

#include "smp/desk/node_state.h"

namespace unreft::smp {

class AttemptInForce {
 public:
  // Of what is recorded now; it does not outlive the turn.
  explicit AttemptInForce(const NodeState& state);

  // Null: nobody trains, by the records.
  const DecisionRecord* decision() const { return decision_; }
  // Whether the decision was made for that process.
  bool Has(ProcessLife life) const;
  // Whether one of its processes has ended, as this node sees or as who leads has said: it commits
  // nothing any more.
  bool IsOver() const;
  // For reports, of which there are several a version: the decision's round, unless one of its
  // processes on this node has ended, as far as the daemon has seen; else 0. Only of a process that
  // it does not serve it asks the kernel.
  uint64_t LivesRound() const;
  // A process of it on this node that lives and is in the way of that one, which is none of it;
  // null where there is none.
  const AskingRank* FindInTheWayOf(const Hello& hello) const;

 private:
  bool HaveAllLived() const;
  bool IsServed(const AskingRank& rank) const;
  bool Lives(const AskingRank& rank) const;
  bool IsHere(const AskingRank& rank) const;

  const NodeState& state_;
  const DecisionRecord* decision_ = nullptr;
};

// Coordinator::Node's: ranks here that train by the last decision. Of those that an earlier process
// of the daemon served the ones that it was made for may yet connect, and count.
uint64_t RanksTraining(const NodeState& state);

}  // namespace unreft::smp
