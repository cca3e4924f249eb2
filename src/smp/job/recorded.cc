#include "smp/job/recorded.h"

#include "smp/job/cluster_records.h"

namespace unreft::smp {

std::vector<recovery::CodedGroup> RecordedGroupsOf(const meta::JobState& records, Version version) {
  const CommitRecord& commit = records.commit.value;
  const bool is_committed = commit.world() != 0 && VersionOf(commit) == version;
  return CodedGroupsOf(is_committed ? commit.groups() : records.view.value.groups());
}

}  // namespace unreft::smp
