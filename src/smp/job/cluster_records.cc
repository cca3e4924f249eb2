#include "smp/job/cluster_records.h"

#include "base/node_header.h"
#include "layout/digest.h"

namespace unreft::smp {

std::vector<recovery::TimelineOrigin> OriginsOf(const TimelineRecord& record) {
  std::vector<recovery::TimelineOrigin> origins;
  for (const TimelineEntry& entry : record.chain()) {
    origins.push_back({Timeline{entry.timeline()},
                       Version{Timeline{entry.parent_timeline()}, Step{entry.parent_step()}}});
  }
  return origins;
}

recovery::TimelineChain ChainOf(const TimelineRecord& record) {
  return recovery::TimelineChain(OriginsOf(record));
}

void OpenTimeline(Timeline next, Version parent, TimelineRecord& record) {
  recovery::TimelineChain chain = ChainOf(record);
  chain.Open(next, parent);
  chain.Trim(kDecisionsKept);
  SetChain(chain, record);
  if (parent == Version{}) record.set_run(next.value);
  if (record.first_timeline() == 0) record.set_first_timeline(next.value);
}

void EndFirstEpoch(const meta::JobState& records, meta::JobChange& change) {
  constexpr uint64_t kFirst = 1;
  if (records.seed.value.epoch() != kFirst) return;
  change.seed = records.seed.value;
  change.seed->set_epoch(kFirst + 1);
}

void SetChain(const recovery::TimelineChain& chain, TimelineRecord& record) {
  record.clear_chain();
  for (const recovery::TimelineOrigin& origin : chain.origins()) {
    TimelineEntry& entry = *record.add_chain();
    entry.set_timeline(origin.timeline.value);
    entry.set_parent_timeline(origin.parent.timeline.value);
    entry.set_parent_step(origin.parent.step.value);
  }
}

std::vector<ec::Group> GroupsOf(const google::protobuf::RepeatedPtrField<Group>& groups) {
  std::vector<ec::Group> coded;
  for (const Group& group : groups) {
    ec::Group& next = coded.emplace_back();
    for (const uint64_t slot : group.slots()) next.slots.push_back(NodeSlot{slot});
    next.k = group.k();
  }
  return coded;
}

void SetGroups(const std::vector<ec::Group>& groups,
               google::protobuf::RepeatedPtrField<Group>& into) {
  into.Clear();
  for (const ec::Group& group : groups) {
    Group& next = *into.Add();
    for (const NodeSlot slot : group.slots) next.add_slots(slot.value);
    next.set_k(group.k);
  }
}

std::vector<recovery::SlabHolder> HoldersOf(
    const google::protobuf::RepeatedPtrField<Holder>& holders) {
  std::vector<recovery::SlabHolder> result;
  for (const Holder& holder : holders) {
    recovery::SlabHolder& next = result.emplace_back();
    next.slot = NodeSlot{holder.slot()};
    for (const uint64_t rank : holder.ranks()) next.ranks.push_back(Rank{rank});
    next.lost = holder.lost();
  }
  return result;
}

void SetHolders(const std::vector<recovery::SlabHolder>& holders,
                google::protobuf::RepeatedPtrField<Holder>& into) {
  into.Clear();
  for (const recovery::SlabHolder& holder : holders) {
    Holder& next = *into.Add();
    next.set_slot(holder.slot.value);
    for (const Rank rank : holder.ranks) next.add_ranks(rank.value);
    next.set_lost(holder.lost);
  }
}

recovery::NodeHolding HoldingOf(const VersionHolding& message) {
  recovery::NodeHolding holding;
  for (const SealedRank& sealed : message.sealed()) {
    holding.sealed.push_back(Rank{sealed.rank()});
    holding.world = std::max(holding.world, sealed.world());
  }
  holding.guarded = message.guarded();
  for (const DescriptionHolding& description : message.descriptions()) {
    recovery::NodeHolding::Description& next = holding.descriptions.emplace_back();
    next.of = NodeSlot{description.slot()};
    for (const uint64_t rank : description.ranks()) next.ranks.push_back(Rank{rank});
    next.world = description.world();
  }
  holding.coding = message.coding();
  holding.data_chunks = message.data_chunks();
  for (const EncodedMember& member : message.encoded()) {
    recovery::EncodedSlabs& next = holding.encoded.emplace_back();
    next.slot = NodeSlot{member.slot()};
    next.memory = member.incarnation();
    for (const uint64_t rank : member.ranks()) next.ranks.push_back(Rank{rank});
  }
  return holding;
}

uint64_t CodingOf(const Group& group, const google::protobuf::RepeatedPtrField<MemberSlab>& slabs) {
  GuardRecord record;  // without maps: the same bytes for the same content
  *record.mutable_group() = group;
  *record.mutable_members() = slabs;
  // Without slabs one memory is as good as another: its blocks are zeros.
  for (MemberSlab& member : *record.mutable_members()) {
    if (member.slabs().empty()) member.clear_incarnation();
  }
  return std::max<uint64_t>(1, layout::Digest64(record.SerializeAsString()));
}

ReplicaDigests DigestsOf(const SealedRank& sealed) {
  ReplicaDigests digests;
  for (const ReplicaDigest& digest : sealed.replica_digests()) {
    digests[digest.shard()] =
        digest.sampled() ? std::optional<uint32_t>(digest.digest()) : std::nullopt;
  }
  return digests;
}

void SetDigests(const ReplicaDigests& digests, SealedRank& sealed) {
  for (const auto& [shard, digest] : digests) {
    ReplicaDigest& next = *sealed.add_replica_digests();
    next.set_shard(shard);
    next.set_sampled(digest.has_value());
    next.set_digest(digest.value_or(0));
  }
}

bool IsAbandoned(const AbandonRecord& record, Version version) {
  const uint64_t step = version.step.value;
  const bool is_after = !record.has_after_step() || step > record.after_step();
  return version.timeline.value == record.timeline() && is_after && step <= record.through_step();
}

Step CaptureFrom(const AbandonRecord& record, Timeline newest) {
  if (record.timeline() == 0 || record.timeline() != newest.value) return Step{};
  return Step{record.through_step() + 1};
}

JobDecision DecisionOf(const DecisionRecord& record) {
  JobDecision decision;
  decision.kind = static_cast<DecisionKind>(record.kind());
  decision.status =
      absl::Status(static_cast<absl::StatusCode>(record.status_code()), record.status_message());
  decision.attempt = Attempt{record.attempt()};
  decision.version = {Timeline{record.version_timeline()}, Step{record.version_step()}};
  decision.timeline = Timeline{record.timeline()};
  decision.holders = HoldersOf(record.holders());
  decision.durable_copy = record.copy();
  for (const AskingRank& asked : record.asked()) {
    const Rank rank{asked.rank()};
    Asker& asker =
        decision.asked[rank] = {rank, {asked.pid(), asked.start_time()}, asked.request()};
    if (!asked.has_slot()) continue;
    asker.home = NodeSlot{asked.slot()};
    decision.homes[rank] = *asker.home;
  }
  if (decision.homes.size() < decision.asked.size()) decision.homes.clear();
  return decision;
}

}  // namespace unreft::smp
