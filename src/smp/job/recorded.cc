#include "smp/job/recorded.h"

#include "smp/job/cluster_records.h"

namespace unreft::smp {

std::vector<ec::Group> RecordedGroupsOf(const meta::JobState& records, Version version) {
  const CommitRecord& commit = records.commit.value;
  const bool is_committed = commit.world() != 0 && VersionOf(commit) == version;
  return GroupsOf(is_committed ? commit.groups() : records.view.value.groups());
}

}  // namespace unreft::smp
