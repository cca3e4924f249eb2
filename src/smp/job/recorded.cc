#include "smp/job/recorded.h"

#include <algorithm>

#include "smp/job/cluster_records.h"

namespace unreft::smp {

const DecisionRecord* DecisionInForce(const TimelineRecord& record) {
  const bool has_failed = record.decision().kind() == static_cast<uint32_t>(DecisionKind::kFailed);
  const DecisionRecord& decision = has_failed ? record.in_force() : record.decision();
  const bool is_newest =
      decision.timeline() != 0 && decision.timeline() == NewestTimeline(record).value;
  return is_newest ? &decision : nullptr;
}

const ViewMember* FindMember(const ViewRecord& view, NodeSlot slot) {
  const auto found = std::ranges::find(view.members(), slot.value, &ViewMember::slot);
  return found == view.members().end() ? nullptr : &*found;
}

bool Names(const ViewRecord& view, NodeSlot slot, const std::string& incarnation) {
  const ViewMember* const member = FindMember(view, slot);
  return member != nullptr && member->incarnation() == incarnation;
}

bool IsPresent(const meta::JobState& records, const ViewMember& member) {
  const PresenceRecord* const presence = records.PresenceOf(NodeSlot{member.slot()});
  return presence != nullptr && presence->incarnation() == member.incarnation();
}

std::vector<ec::Group> RecordedGroupsOf(const meta::JobState& records, Version version) {
  const CommitRecord& commit = records.commit.value;
  const bool is_committed = commit.world() != 0 && VersionOf(commit) == version;
  return GroupsOf(is_committed ? commit.groups() : records.view.value.groups());
}

}  // namespace unreft::smp
