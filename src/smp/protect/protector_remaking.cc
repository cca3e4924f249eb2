// What is made anew after a loss: this node's share in a restored version's protection.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/protect/protector.h"

namespace unreft::smp {
void Protector::Remake(Version version, const GuardRecord& of_another,
                       const std::vector<uint64_t>& replica_bytes) {
  if (guards_.Complete(version) != nullptr) return;
  const auto found = versions_.find(version);
  const bool waits = found != versions_.end() && found->second.remaking && !found->second.guarding;
  if (found != versions_.end() && !waits) return;
  google::protobuf::RepeatedPtrField<Group> groups;
  *groups.Add() = of_another.group();
  const std::optional<GroupView> group = FindGroup(groups, peers_.self());
  if (!group || of_another.members_size() != static_cast<int>(group->members())) {
    return Refuse(fmt::format("version {}: the group's record is of other members", version));
  }
  absl::StatusOr<GroupSlabs> slabs =
      GroupSlabs::Make(group->shape, state_.options.block_bytes,
                       {of_another.members().begin(), of_another.members().end()});
  if (!slabs.ok()) return Refuse(fmt::format("version {}: {}", version, slabs.status().message()));
  uint64_t kept_bytes = 0;
  for (const uint32_t member : group->Predecessors()) kept_bytes += replica_bytes[member];
  UnderWay& under_way = Of(version);
  under_way.provided = false;
  under_way.remaking.emplace(Remaking{*group, *std::move(slabs), kept_bytes});
  StartRemaking(version, under_way);
  if (under_way.guarding != nullptr) return;
  state_.seams.log.Info(
      "version {}: its protection is not restored on node {} yet: no guard is free", version,
      peers_.self());
}

// It waits for a guard to become free: to have its pages, or to be of no use any more.
void Protector::StartRemaking(Version version, UnderWay& under_way) {
  if (under_way.guarding != nullptr) return;
  // Newer versions come first: what is too small for this one may be right for them.
  under_way.provided |= std::any_of(versions_.begin(), versions_.end(), [&](const auto& other) {
    return other.first > version && other.second.provided;
  });
  const Remaking& remaking = *under_way.remaking;
  StartWith(version, under_way, remaking.group, remaking.slabs, remaking.replica_bytes,
            Guarding::Mode::kAlone);
}

}  // namespace unreft::smp
