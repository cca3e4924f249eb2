// Which attempts ask for a decision, and whether the one in force stands in their way
// (docs/protocol.md, rule 29). Pure.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// Ranks that ask for a decision, all of one attempt.
struct Asked {
  uint64_t attempt = 0;
  uint64_t world = 0;
  std::map<uint64_t, AskingRank> ranks;
  // Why they are not the ranks of one attempt, though they say so; empty where they are.
  std::string contradiction;

  bool is_complete() const { return contradiction.empty() && ranks.size() == world; }
};
// By attempt, as far as their nodes have heard of the last decision.
std::vector<Asked> WhoAsk(const meta::JobState& records, const RollCall& roll);

// Whether both name one process.
bool AreOneLife(const AskingRank& a, const AskingRank& b);

// Whether a process that the decision in force was made for has ended, or all of them were on nodes
// that are lost: who it was made for commits nothing any more. Not while a node has yet to hear of
// it. Where some of these nodes are lost the others' processes may train on, and commit again once
// the daemons are back.
bool IsOver(const DecisionRecord& in_force, const RollCall& roll);

// Whether those are decided for: where no decision is in force, where that one is over, or where
// one of the processes that it was made for asks again. FailedPrecondition otherwise.
absl::Status CheckMayFollow(const DecisionRecord* in_force, const RollCall& roll,
                            const Asked& asked);

}  // namespace unreft::smp
