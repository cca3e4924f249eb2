// How the leader commits versions and gives them up.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/cluster_records.h"
#include "smp/leader.h"
#include "smp/newest_steps.h"
#include "smp/refusals.h"
#include "smp/replica_comparison.h"

namespace unreft::smp {
namespace {

constexpr int kGivenUpKept = 64;
// In one Txn: as quick as ranks may skip, it must not fall behind.
constexpr size_t kGivenUpAtOnce = kGivenUpKept / 2;
// Of each; the node that says it has it whole in its log. The record stays small (PROTOCOL rule
// 24).
constexpr size_t kReasonBytesMax = 192;

}  // namespace

std::set<Version> Leader::VersionsUnderWay() const {
  const meta::JobState& state = store_.state();
  std::set<Version> versions;
  const int size = state.timeline.value.chain_size();
  if (size == 0) return versions;
  const Timeline newest{state.timeline.value.chain(size - 1).timeline()};
  const Version committed = VersionOf(state.commit.value);
  for (const auto& [slot, report] : reports_) {
    for (const VersionHolding& holding : report.versions()) {
      const Version version = VersionOf(holding);
      if (version.timeline == newest && version > committed) versions.insert(version);
    }
  }
  return versions;
}

bool Leader::IsGivenUp(Version version) const {
  const auto& versions = store_.state().abandoned.value.versions();
  return std::any_of(versions.begin(), versions.end(),
                     [&](const GivenUp& given_up) { return VersionOf(given_up) == version; });
}

// The record has room for so many and forgets the oldest; who has not heard of them goes on to
// report them.
bool Leader::IsForgotten(Version version) const {
  const auto& versions = store_.state().abandoned.value.versions();
  return versions.size() >= kGivenUpKept &&
         std::all_of(versions.begin(), versions.end(),
                     [&](const GivenUp& given_up) { return version < VersionOf(given_up); });
}

std::string Leader::NotCompletedInTime(Version version) const {
  std::set<Rank> sealed;
  uint64_t world = 0;
  for (const auto& [slot, report] : reports_) {
    for (const VersionHolding& holding : report.versions()) {
      if (VersionOf(holding) != version) continue;
      for (const SealedRank& rank : holding.sealed()) {
        sealed.insert(Rank{rank.rank()});
        world = std::max<uint64_t>(world, rank.world());
      }
    }
  }
  return NotCompletedBy(sealed, world, options_.version_deadline);
}

std::optional<std::string> Leader::FailureOf(Version version) const {
  for (const auto& [slot, report] : reports_) {
    for (const VersionHolding& holding : report.versions()) {
      if (VersionOf(holding) == version && !holding.failure().empty()) {
        return fmt::format("node {}: {}", slot, CleanText(holding.failure(), kTextBytesMax));
      }
    }
  }
  std::optional<std::string> failure = PassedBy(version);
  const auto pending = pending_.find(version);
  const bool is_overdue = pending != pending_.end() && pending->second.overdue;
  if (!failure && is_overdue) failure = NotCompletedInTime(version);
  return failure && !WaitsForDecision(version) ? failure : std::nullopt;
}

// Steps ascend: what a rank has gone on without, it never captures any more.
std::optional<std::string> Leader::PassedBy(Version version) const {
  const auto is_of = [&](const VersionHolding& holding) { return VersionOf(holding) == version; };
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report == nullptr || report->newest_timeline() != version.timeline.value) continue;
    const auto held = std::ranges::find_if(report->versions(), is_of);
    for (const RegisteredRank& rank : report->registered()) {
      if (!rank.has_passed_step() || rank.passed_step() < version.step.value) continue;
      const bool is_sealed = held != report->versions().end() &&
                             std::ranges::any_of(held->sealed(), [&](const SealedRank& sealed) {
                               return sealed.rank() == rank.rank();
                             });
      const bool is_under_way =
          std::ranges::find(rank.capturing(), version.step.value) != rank.capturing().end();
      if (is_sealed || is_under_way) continue;
      return fmt::format("node {}: rank {} is at step {} and has not captured it", member.slot(),
                         rank.rank(), rank.passed_step());
    }
  }
  return std::nullopt;
}

std::map<NodeSlot, recovery::NodeHolding> Leader::HeldOf(Version version) const {
  std::map<NodeSlot, recovery::NodeHolding> held;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const NodeReport* report = member.lost() ? nullptr : ReportOf(member);
    if (report == nullptr) continue;
    for (const VersionHolding& holding : report->versions()) {
      if (VersionOf(holding) == version) held[NodeSlot{member.slot()}] = HoldingOf(holding);
    }
  }
  return held;
}

recovery::Memories Leader::MemoriesLeft() const {
  recovery::Memories memories;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    if (!member.lost()) memories[NodeSlot{member.slot()}] = member.incarnation();
  }
  return memories;
}

// A version that is protected, but for nodes that were lost meanwhile with ranks of theirs: it is
// neither committed nor given up. The next decision finds it, or those nodes come back.
bool Leader::WaitsForDecision(Version version) const {
  const auto found = recovery::FindProtected(version, HeldOf(version), RecordedGroupsOf(version),
                                             MemoriesLeft(), nullptr);
  return found && std::any_of(found->holders.begin(), found->holders.end(),
                              [](const recovery::SlabHolder& holder) { return holder.lost; });
}

bool Leader::GiveUpFailed() {
  const std::set<Version> under_way = VersionsUnderWay();
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (!under_way.contains(it->first)) {
      executor_.Cancel(it->second.deadline);
      it = pending_.erase(it);
    } else {
      ++it;
    }
  }
  std::vector<Failed> failed;
  for (const Version version : under_way) {
    if (IsGivenUp(version)) continue;
    Pending& pending = pending_[version];
    const std::optional<std::string> failure = FailureOf(version);
    // What the record has forgotten is named again, but not over and over.
    if (failure && (!IsForgotten(version) || pending.overdue)) {
      if (failed.size() == kGivenUpAtOnce) continue;
      executor_.Cancel(pending.deadline);
      pending_.erase(version);
      failed.push_back({version, *failure});
      continue;
    }
    if (pending.deadline != TimerId::kNone) continue;
    pending.deadline = executor_.After(options_.version_deadline, [this, version] {
      pending_[version].overdue = true;
      RunRules();
    });
  }
  return !failed.empty() && GiveUp(failed);
}

Step Leader::NewestStep() const {
  const TimelineRecord& record = store_.state().timeline.value;
  const uint64_t timeline =
      record.chain().empty() ? 0 : record.chain(record.chain_size() - 1).timeline();
  NewestSteps newest;
  for (const auto& [slot, report] : reports_) {
    if (report.newest_timeline() == timeline) newest.Note(slot.value, Step{report.newest_step()});
    for (const VersionHolding& holding : report.versions()) {
      if (holding.timeline() == timeline) newest.Note(slot.value, Step{holding.step()});
    }
  }
  return newest.Believed();
}

bool Leader::GiveUp(const std::vector<Failed>& versions, const std::string& disagreement) {
  AbandonRecord record = store_.state().abandoned.value;
  for (const auto& [version, reason] : versions) {
    GivenUp& given_up = *record.add_versions();
    SetVersion(version, given_up);
    given_up.set_reason(CleanText(reason, kReasonBytesMax));
  }
  const int too_many = record.versions_size() - kGivenUpKept;
  if (too_many > 0) record.mutable_versions()->DeleteSubrange(0, too_many);
  record.set_capture_from(NewestStep().value + 1);
  if (!disagreement.empty()) {
    record.set_full_capture_from_timeline(versions.back().version.timeline.value);
    record.set_disagreement(CleanText(disagreement, kReasonBytesMax));
  }
  return Write({.abandoned = std::move(record)});
}

bool Leader::CommitNewest() {
  const std::set<Version> under_way = VersionsUnderWay();
  for (auto it = under_way.rbegin(); it != under_way.rend(); ++it) {
    if (!IsGivenUp(*it) && TryCommit(*it)) return true;
  }
  return false;
}

bool Leader::TryCommit(Version version) {
  std::map<Rank, ReplicaDigests> digests;
  std::map<Rank, WorldLayouts::RankLayout> layouts;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    if (member.lost()) continue;
    const NodeReport* report = ReportOf(member);
    if (report == nullptr) return false;
    for (const VersionHolding& holding : report->versions()) {
      if (VersionOf(holding) != version) continue;
      for (const SealedRank& sealed : holding.sealed()) {
        digests[Rank{sealed.rank()}] = DigestsOf(sealed);
        layouts[Rank{sealed.rank()}] = {NodeSlot{member.slot()}, sealed.layout_digest()};
      }
    }
  }
  const auto found = recovery::FindProtected(version, HeldOf(version), RecordedGroupsOf(version),
                                             MemoriesLeft(), nullptr);
  if (!found) return false;
  if (std::ranges::any_of(found->holders, &recovery::SlabHolder::lost)) return false;
  const ReplicaComparison replicas = CompareReplicas(digests);
  if (!replicas.disagreement.empty()) {
    return GiveUp({{version, replicas.disagreement}}, replicas.disagreement);
  }
  const bool first = VersionOf(store_.state().commit.value).timeline != version.timeline;
  if (!replicas.complete && first && options_.replica_check_every != 0) {
    return GiveUp({{version, std::string(kReplicasNotCompared)}});
  }
  const std::optional<ManifestsByRank> manifests = layouts_.ManifestsOf(version, layouts);
  if (!manifests) return false;
  // A daemon that was told of a disagreement goes on so, one that started later may not know.
  if (const std::string mixed = DescribeMixedModes(*manifests); !mixed.empty()) {
    return GiveUp({{version, mixed}}, mixed);
  }
  if (absl::Status status = layouts_.Check(*manifests); !status.ok()) {
    return GiveUp({{version, std::string(status.message())}});
  }
  return Commit(*found);
}

bool Leader::Commit(const recovery::Restorable& found) {
  CommitRecord record;
  SetVersion(found.version, record);
  record.set_world(found.world);
  record.set_view(store_.state().view.value.number());
  *record.mutable_groups() = store_.state().view.value.groups();
  SetHolders(found.holders, *record.mutable_holders());
  return Write({.commit = std::move(record)}, "leader.commit");
}

}  // namespace unreft::smp
