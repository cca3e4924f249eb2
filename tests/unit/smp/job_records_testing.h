// Records of a job, as its leader would have written them.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>

#include "base/ids.h"
#include "base/session_frames.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

inline Version At(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

// Timelines 1 to `newest`, each on step 10 * (its number - 1) of the one before.
inline TimelineRecord Chain(uint64_t newest, uint64_t round) {
  TimelineRecord record;
  for (uint64_t timeline = 1; timeline <= newest; ++timeline) {
    TimelineEntry& entry = *record.add_chain();
    entry.set_timeline(timeline);
    entry.set_parent_timeline(timeline - 1);
    entry.set_parent_step(10 * (timeline - 1));
  }
  record.set_round(round);
  return record;
}

inline TimelineRecord Decided(uint64_t timeline, uint64_t round, Version version) {
  TimelineRecord record = Chain(timeline, round);
  DecisionRecord& decision = *record.mutable_decision();
  decision.set_round(round);
  decision.set_timeline(timeline);
  const bool fresh = version == Version{};
  decision.set_kind(static_cast<uint32_t>(fresh ? DecisionKind::kFresh : DecisionKind::kRestored));
  decision.set_version_timeline(version.timeline.value);
  decision.set_version_step(version.step.value);
  return record;
}

inline CommitRecord Committed(Version version, uint64_t world = 2) {
  CommitRecord record;
  SetVersion(version, record);
  record.set_world(world);
  return record;
}

}  // namespace unreft::smp
