// What the leader decides that is restored, and when (docs/protocol.md, rule 21). Pure.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>
#include <optional>

#include "smp/job/facts.h"
#include "smp/job/move.h"

namespace unreft::smp {

// Ranks that ask for a decision, of one attempt.
struct Asked {
  uint64_t attempt = 0;
  uint64_t world = 0;
  std::map<uint64_t, AskingRank> ranks;
};
// Of the newest attempt of which ranks ask, as far as their nodes have heard of the last decision.
std::optional<Asked> WhoAsks(const meta::JobState& records, const RollCall& roll);

Move DecisionRule(const Facts& facts);

}  // namespace unreft::smp
