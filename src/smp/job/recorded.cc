#include "smp/job/recorded.h"

#include "smp/job/cluster_records.h"

namespace unreft::smp {

const DecisionRecord* DecisionInForce(const TimelineRecord& record) {
  const bool has_failed = record.decision().kind() == static_cast<uint32_t>(DecisionKind::kFailed);
  const DecisionRecord& decision = has_failed ? record.in_force() : record.decision();
  const bool is_newest =
      decision.timeline() != 0 && decision.timeline() == NewestTimeline(record).value;
  return is_newest ? &decision : nullptr;
}

std::vector<ec::Group> RecordedGroupsOf(const meta::JobState& records, Version version) {
  const CommitRecord& commit = records.commit.value;
  const bool is_committed = commit.world() != 0 && VersionOf(commit) == version;
  return GroupsOf(is_committed ? commit.groups() : records.view.value.groups());
}

}  // namespace unreft::smp
