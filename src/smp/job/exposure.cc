#include "smp/job/exposure.h"

#include <map>
#include <vector>

#include "recovery/restorable.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"

namespace unreft::smp {

ExposureReply ExposureOf(const meta::JobState& records, const RollCall& roll) {
  const CommitRecord& commit = records.commit.value;
  const Version committed = VersionOf(commit);
  const std::map<NodeSlot, recovery::NodeHolding> held = HeldOf(roll, committed);
  ExposureReply reply;
  SetVersion(committed, reply);
  reply.set_world(commit.world());
  const auto& groups = commit.world() != 0 ? commit.groups() : records.view.value.groups();
  const std::vector<ec::Group> coded = GroupsOf(groups);
  for (size_t i = 0; i < coded.size(); ++i) {
    GroupExposure& exposure = *reply.add_groups();
    *exposure.mutable_group() = groups[static_cast<int>(i)];
    exposure.set_stands(recovery::LossesTolerated(coded[i], held));
  }
  reply.set_restorable_known(roll.have_all_told());
  if (commit.world() == 0) return reply;
  // What is newer than the committed version is read as a whole before it is restored.
  const recovery::Holdings holdings = HoldingsOf(roll);
  const AbandonRecord& abandoned = records.abandoned.value;
  const recovery::TimelineChain chain = ChainOf(records.timeline.value);
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    const Version version = it->first;
    if (version > committed || !chain.IsLive(version) || IsAbandoned(abandoned, version)) continue;
    const auto found =
        recovery::FindHolders(version, it->second, RecordedGroupsOf(records, version), nullptr);
    if (!found) continue;
    reply.set_restorable_timeline(version.timeline.value);
    reply.set_restorable_step(version.step.value);
    reply.set_restorable_world(found->world);
    break;
  }
  return reply;
}

}  // namespace unreft::smp
