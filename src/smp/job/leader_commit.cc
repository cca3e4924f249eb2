// How the leader commits versions and gives them up.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/leader.h"
#include "smp/job/refusals.h"
#include "smp/job/replica_comparison.h"

namespace unreft::smp {
namespace {

// The node that says it has it whole in its log. The record stays small (docs/protocol.md, rule
// 24).
constexpr size_t kReasonBytesMax = 192;
// However often ranks skip: each such write is one more revision of the whole cluster's store.
constexpr Duration kGiveUpEvery = std::chrono::seconds(1);
// In which ranks go on before they have heard of it: twice as long each time that it was in vain.
constexpr Duration kLead = std::chrono::milliseconds(200);
constexpr Duration kLeadMax = std::chrono::seconds(2);

Duration LeadAfter(uint64_t in_vain) {
  return std::min(kLead * (1 << std::min<uint64_t>(in_vain, 16)), kLeadMax);
}

}  // namespace

std::set<Version> Leader::VersionsUnderWay() const {
  const meta::JobState& state = store_.state();
  std::set<Version> versions;
  const int size = state.timeline.value.chain_size();
  if (size == 0) return versions;
  const Timeline newest{state.timeline.value.chain(size - 1).timeline()};
  const Version committed = VersionOf(state.commit.value);
  for (const auto& [version, tally] : board_.versions()) {
    if (version.timeline == newest && version > committed) versions.insert(version);
  }
  return versions;
}

bool Leader::IsGivenUp(Version version) const {
  return smp::IsGivenUp(store_.state().abandoned.value, version);
}

std::string Leader::NotCompletedInTime(Version version) const {
  std::set<Rank> sealed;
  uint64_t world = 0;
  if (const auto it = board_.versions().find(version); it != board_.versions().end()) {
    for (const auto& [rank, nodes] : it->second.sealed) sealed.insert(rank);
    if (!it->second.worlds.empty()) world = it->second.worlds.rbegin()->first;
  }
  return NotCompletedBy(sealed, world, options_.version_deadline);
}

std::optional<std::string> Leader::FailureOf(Version version) const {
  if (const auto it = rejected_.find(version); it != rejected_.end()) return it->second;
  const auto tally = board_.versions().find(version);
  if (tally != board_.versions().end() && !tally->second.failures.empty()) {
    const auto& [slot, failure] = *tally->second.failures.begin();
    return fmt::format("node {}: {}", slot, CleanText(failure, kTextBytesMax));
  }
  // Also of what a decision would find: its rank lives, and trains on without one.
  if (std::optional<std::string> passed = PassedBy(version)) return passed;
  const auto pending = pending_.find(version);
  const bool is_overdue = pending != pending_.end() && pending->second.overdue;
  if (!is_overdue || WaitsForDecision(version)) return std::nullopt;
  return NotCompletedInTime(version);
}

// Steps ascend: what a rank has gone on without, it never captures any more.
std::optional<std::string> Leader::PassedBy(Version version) const {
  const auto tally = board_.versions().find(version);
  if (tally == board_.versions().end() || tally->second.passed.empty()) return std::nullopt;
  for (const unreft::Member& member : store_.state().view.value.members()) {
    const auto passed = tally->second.passed.find(NodeSlot{member.slot()});
    if (passed == tally->second.passed.end() || member.lost()) continue;
    if (ReportOf(member) == nullptr) continue;
    return fmt::format("node {}: rank {} is at step {} and has not captured it", member.slot(),
                       passed->second.rank, passed->second.step);
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

// A last net: what a version waits for is in the reports, and is not waited for by a clock.
void Leader::KeepDeadlines(const std::set<Version>& under_way) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (under_way.contains(it->first) && !IsGivenUp(it->first)) {
      ++it;
      continue;
    }
    executor_.Cancel(it->second.deadline);
    it = pending_.erase(it);
  }
  for (const Version version : under_way) {
    if (IsGivenUp(version)) continue;
    Pending& pending = pending_[version];
    if (pending.deadline != TimerId::kNone) continue;
    pending.deadline = executor_.After(options_.version_deadline, [this, version] {
      pending_[version].overdue = true;
      ++deadlines_used_;
      log_.Warn("version {} is given up by its deadline: {}", version, NotCompletedInTime(version));
      RunRules();
    });
  }
}

// Those of a node whose daemon is away, or has just started and is yet to hear where they are: what
// all begin before they are back, they are not there to capture. But not for longer than a node may
// be away: its trainers may have ended without its seeing it.
bool Leader::AwaitsRanks() {
  const auto is_complete = [this](const unreft::Member& member) {
    const NodeReport* const report = ReportOf(member);
    if (member.lost() || report == nullptr) return member.lost();
    const auto said = std::ranges::count_if(report->registered(), &RegisteredRank::has_passed_step);
    return static_cast<uint64_t>(said) >= report->ranks();
  };
  if (std::ranges::all_of(store_.state().view.value.members(), is_complete)) {
    awaited_since_.reset();
    return false;
  }
  const Time now = executor_.Now();
  if (!awaited_since_) awaited_since_ = now;
  return now - *awaited_since_ < options_.presence_ttl + options_.lost_grace;
}

bool Leader::GiveUpFailed() {
  const bool awaits_ranks = AwaitsRanks();
  const std::set<Version> under_way = VersionsUnderWay();
  KeepDeadlines(under_way);
  std::erase_if(rejected_, [&](const auto& entry) { return !under_way.contains(entry.first); });
  std::vector<StepUnderWay> steps;
  for (const Version version : under_way) {
    if (!IsGivenUp(version)) steps.push_back({version.step, FailureOf(version)});
  }
  const Time now = executor_.Now();
  const Step newest = NewestStep();
  const uint64_t lead = pace_.StepsIn(LeadAfter(gave_up_in_vain_));
  const std::optional<GivingUp> giving_up = WhatToGiveUp(steps, newest, lead);
  if (!giving_up || awaits_ranks) return false;
  if (gave_up_at_ && now - *gave_up_at_ < kGiveUpEvery) {
    if (give_up_timer_ == TimerId::kNone) {
      give_up_timer_ = executor_.After(*gave_up_at_ + kGiveUpEvery - now, [this] {
        give_up_timer_ = TimerId::kNone;
        RunRules();
      });
    }
    return false;
  }
  gave_up_at_ = now;
  ++gave_up_in_vain_;
  return Write({.abandoned = GivenUpThrough(under_way.rbegin()->timeline, *giving_up)});
}

AbandonRecord Leader::GivenUpThrough(Timeline timeline, const GivingUp& giving_up) const {
  AbandonRecord record = store_.state().abandoned.value;
  const Version committed = VersionOf(store_.state().commit.value);
  record.set_timeline(timeline.value);
  record.set_after_step(committed.timeline == timeline ? committed.step.value : 0);
  record.set_through_step(giving_up.through.value);
  record.set_reason(CleanText(giving_up.reason, kReasonBytesMax));
  return record;
}

Step Leader::NewestStep() {
  const TimelineRecord& record = store_.state().timeline.value;
  const uint64_t timeline =
      record.chain().empty() ? 0 : record.chain(record.chain_size() - 1).timeline();
  return board_.NewestStep(Timeline{timeline});
}

bool Leader::CommitNewest() {
  const std::set<Version> under_way = VersionsUnderWay();
  const size_t rejected = rejected_.size();
  for (auto it = under_way.rbegin(); it != under_way.rend(); ++it) {
    if (IsGivenUp(*it) || rejected_.contains(*it)) continue;
    if (TryCommit(*it)) return true;
  }
  return rejected_.size() != rejected && GiveUpFailed();
}

bool Leader::Reject(Version version, std::string why) {
  rejected_[version] = std::move(why);
  return false;
}

// From now on every rank captures all it holds.
bool Leader::RejectMixed(Version version, const std::string& disagreement) {
  Reject(version, disagreement);
  AbandonRecord record = store_.state().abandoned.value;
  const bool is_said = record.full_capture_from_timeline() == version.timeline.value;
  if (is_said) return false;  // it was captured before its rank had heard of it
  record.set_full_capture_from_timeline(version.timeline.value);
  record.set_disagreement(CleanText(disagreement, kReasonBytesMax));
  return Write({.abandoned = std::move(record)});
}

bool Leader::TryCommit(Version version) {
  // What a version lacks is found without reading all reports, which is done once nothing seems to.
  const auto tally = board_.versions().find(version);
  if (tally == board_.versions().end() || !tally->second.MayBeWhole()) return false;
  const auto report_of = [this](const unreft::Member& member) { return ReportOf(member); };
  if (!board_.AreGroupsProtected(version, store_.state(), report_of)) return false;
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
    return RejectMixed(version, replicas.disagreement);
  }
  const bool first = VersionOf(store_.state().commit.value).timeline != version.timeline;
  if (!replicas.complete && first && options_.replica_check_every != 0) {
    return Reject(version, std::string(kReplicasNotCompared));
  }
  const std::optional<ManifestsByRank> manifests = layouts_.ManifestsOf(version, layouts);
  if (!manifests) return false;
  // A daemon that was told of a disagreement goes on so, one that started later may not know.
  if (const std::string mixed = DescribeMixedModes(*manifests); !mixed.empty()) {
    return RejectMixed(version, mixed);
  }
  if (absl::Status status = layouts_.Check(*manifests); !status.ok()) {
    return Reject(version, std::string(status.message()));
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
  gave_up_in_vain_ = 0;
  return Write({.commit = std::move(record)}, "leader.commit");
}

}  // namespace unreft::smp
