// What releases before the kept records wrote to the record store of a job of one node
// (docs/formats/records.md).
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace unreft::smp {

inline constexpr char kEarlierCommitKey[] = "commit";
// Of the first timeline.
inline constexpr char kEarlierDecisionKey[] = "decision/00000000000000000001";

struct EarlierCommit {
  uint16_t format = 1;
  Version version;
  uint64_t world = 0;
  void Fields(auto& wire) { wire(format, version.timeline, version.step, world); }
};

struct EarlierDecision {
  uint16_t format = 1;
  Timeline timeline;
  Version parent;
  void Fields(auto& wire) { wire(format, timeline, parent.timeline, parent.step); }
};

}  // namespace unreft::smp
