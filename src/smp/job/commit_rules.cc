#include "smp/job/commit_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"
#include "smp/job/refusals.h"
#include "smp/job/replica_comparison.h"

namespace unreft::smp {
namespace {

// The node that says it has it whole in its log. The record stays small (docs/protocol.md, rule
// 24).
constexpr size_t kReasonBytesMax = 192;
// In which ranks go on before they have heard of it: twice as long each time that it was in vain.
constexpr Duration kLead = std::chrono::milliseconds(200);
constexpr Duration kLeadMax = std::chrono::seconds(2);

// However often ranks skip: each such write is one more revision of the whole cluster's store.
Duration AbandonEvery(const NodeOptions& options) {
  return options.has_own_store ? Duration{} : std::chrono::seconds(1);
}

Duration LeadOf(const Facts& facts) {
  if (facts.options.has_own_store) return Duration{};  // all ranks hear of it at once
  return std::min(kLead * (1 << std::min<uint64_t>(facts.abandoning.in_vain, 16)), kLeadMax);
}

const Tally* TallyOf(const Facts& facts, Version version) {
  const auto tally = facts.board.versions().find(version);
  return tally == facts.board.versions().end() ? nullptr : &tally->second;
}

bool IsAbandoned(const Facts& facts, Version version) {
  return smp::IsAbandoned(facts.records.abandoned.value, version);
}

// Steps ascend: what a rank has gone on without, it never captures any more.
std::optional<std::string> PassedBy(const RollCall& roll, const Tally& tally) {
  if (tally.passed.empty()) return std::nullopt;
  for (const auto& [slot, report] : roll.told()) {
    const auto passed = tally.passed.find(slot);
    if (passed == tally.passed.end()) continue;
    return fmt::format("node {}: rank {} is at step {} and has not captured it", slot,
                       passed->second.rank, passed->second.step);
  }
  return std::nullopt;
}

// A version that is protected, but for nodes that were lost meanwhile with ranks of theirs: it is
// neither committed nor given up. The next decision finds it, or those nodes come back.
bool WaitsForDecision(const Facts& facts, Version version) {
  const auto found = recovery::FindProtected(version, HeldOf(facts.roll, version),
                                             RecordedGroupsOf(facts.records, version),
                                             MemoriesLeft(facts.roll), nullptr);
  return found && std::ranges::any_of(found->holders, &recovery::SlabHolder::lost);
}

AbandonRecord AbandonedThrough(const Facts& facts, Timeline timeline,
                               const Abandonment& abandonment) {
  AbandonRecord record = facts.records.abandoned.value;
  const Version committed = VersionOf(facts.records.commit.value);
  record.set_timeline(timeline.value);
  record.clear_after_step();
  if (committed.timeline == timeline) record.set_after_step(committed.step.value);
  record.set_through_step(abandonment.through.value);
  record.set_reason(CleanText(abandonment.reason, kReasonBytesMax));
  return record;
}

// Those of a node whose daemon is away, or has just started and is yet to hear where they are, are
// waited for. But not for longer than a node may be away: its trainers may have ended without its
// seeing it.
bool AwaitsRanks(const Facts& facts) {
  const std::optional<Time>& since = facts.abandoning.ranks_away_since;
  return since && facts.now - *since < facts.options.presence_ttl + facts.options.lost_grace;
}

// Which can never be committed, as was found when all of it was there. From now on every rank
// captures all it holds.
void RejectMixed(const Facts& facts, Version version, const std::string& disagreement, Move& move) {
  move.rejected[version] = disagreement;
  AbandonRecord record = facts.records.abandoned.value;
  const bool is_said = record.full_capture_from_timeline() == version.timeline.value;
  if (is_said) return;  // it was captured before its rank had heard of it
  record.set_full_capture_from_timeline(version.timeline.value);
  record.set_disagreement(CleanText(disagreement, kReasonBytesMax));
  move.write = {.abandoned = std::move(record)};
}

void Commit(const Facts& facts, const recovery::Restorable& found, Move& move) {
  CommitRecord record;
  SetVersion(found.version, record);
  record.set_world(found.world);
  record.set_view(facts.records.view.value.number());
  *record.mutable_groups() = facts.records.view.value.groups();
  SetHolders(found.holders, *record.mutable_holders());
  move.write = {.commit = std::move(record)};
  move.fault_point = "leader.commit";
  move.commits = true;
}

struct Slab {
  NodeSlot home;
  const SealedRank* sealed;
};

// Of all ranks.
std::map<Rank, Slab> SlabsOf(const RollCall& roll, Version version) {
  std::map<Rank, Slab> slabs;
  for (const auto& [slot, report] : roll.told()) {
    const VersionHolding* const holding = FindHolding(*report, version);
    if (holding == nullptr) continue;
    for (const SealedRank& sealed : holding->sealed()) slabs[Rank{sealed.rank()}] = {slot, &sealed};
  }
  return slabs;
}

ReplicaComparison Compare(const std::map<Rank, Slab>& slabs) {
  ReplicaComparer comparer;
  for (const auto& [rank, slab] : slabs) {
    for (const ReplicaDigest& digest : slab.sealed->replica_digests()) {
      comparer.Add(rank, digest.shard(),
                   digest.sampled() ? std::optional(digest.digest()) : std::nullopt);
    }
  }
  return comparer.result();
}

std::vector<uint64_t> LayoutsOf(const std::map<Rank, Slab>& slabs) {
  std::vector<uint64_t> digests;
  for (const auto& [rank, slab] : slabs) digests.push_back(slab.sealed->layout_digest());
  return digests;
}

ManifestCache::Known FindManifests(const ManifestCache& manifests,
                                   const std::map<Rank, Slab>& slabs) {
  std::map<Rank, ManifestCache::RankLayout> layouts;
  for (const auto& [rank, slab] : slabs) {
    layouts.emplace_hint(layouts.end(), rank,
                         ManifestCache::RankLayout{slab.home, slab.sealed->layout_digest()});
  }
  return manifests.Find(layouts);
}

// Whether what all ranks hold is known to make a whole. If not, `move` says why, or asks for what
// is not known.
bool DoLayoutsFit(const Facts& facts, Version version, const std::map<Rank, Slab>& slabs,
                  Move& move) {
  if (facts.layouts.AreKnownToFit(LayoutsOf(slabs))) return true;
  const ManifestCache::Known known = FindManifests(facts.manifests, slabs);
  for (const NodeSlot slot : known.to_ask) move.ask_manifests.emplace_back(slot, version);
  if (!known.to_ask.empty()) return false;
  // A daemon that was told of a disagreement goes on so, one that started later may not know.
  if (const std::string mixed = DescribeMixedModes(known.manifests); !mixed.empty()) {
    RejectMixed(facts, version, mixed, move);
    return false;
  }
  const absl::Status status = facts.layouts.Check(known.manifests);
  if (!status.ok()) move.rejected[version] = std::string(status.message());
  return status.ok();
}

// Commits it if it can be, rejects it if it never can, asks for what is not known, or lets it be.
void TryCommit(const Facts& facts, Version version, Move& move) {
  // What a version lacks is found without reading all reports, which is done once nothing seems to.
  const Tally* const tally = TallyOf(facts, version);
  if (tally == nullptr || !tally->MayBeWhole() || !facts.roll.have_all_in_told()) return;
  if (!facts.board.AreGroupsProtected(version, facts.records, facts.roll)) return;
  const auto found = recovery::FindProtected(version, HeldOf(facts.roll, version),
                                             RecordedGroupsOf(facts.records, version),
                                             MemoriesLeft(facts.roll), nullptr);
  if (!found || std::ranges::any_of(found->holders, &recovery::SlabHolder::lost)) return;
  const std::map<Rank, Slab> slabs = SlabsOf(facts.roll, version);
  const ReplicaComparison replicas = Compare(slabs);
  if (!replicas.disagreement.empty()) {
    return RejectMixed(facts, version, replicas.disagreement, move);
  }
  const bool first = VersionOf(facts.records.commit.value).timeline != version.timeline;
  if (!replicas.complete && first && facts.options.replica_check_every != 0) {
    move.rejected[version] = kReplicasNotCompared;
    return;
  }
  if (!DoLayoutsFit(facts, version, slabs, move)) return;
  Commit(facts, *found, move);
}

}  // namespace

std::set<Version> VersionsUnderWay(const Facts& facts) {
  std::set<Version> versions;
  const Timeline newest = NewestTimeline(facts.records.timeline.value);
  if (newest == Timeline{0}) return versions;
  const Version committed = VersionOf(facts.records.commit.value);
  for (const auto& [version, tally] : facts.board.versions()) {
    if (version.timeline == newest && version > committed) versions.insert(version);
  }
  return versions;
}

std::string NotCompletedInTime(const Facts& facts, Version version) {
  std::set<Rank> sealed;
  uint64_t world = 0;
  if (const Tally* tally = TallyOf(facts, version)) {
    for (const auto& [rank, nodes] : tally->sealed) sealed.insert(rank);
    if (!tally->worlds.empty()) world = tally->worlds.rbegin()->first;
  }
  return NotCompletedBy(sealed, world, facts.options.version_deadline);
}

std::optional<std::string> FailureOf(const Facts& facts, Version version) {
  const auto& [rejected, since, overdue] = facts.versions;
  if (const auto it = rejected.find(version); it != rejected.end()) return it->second;
  if (const Tally* tally = TallyOf(facts, version)) {
    if (!tally->failures.empty()) {
      const auto& [slot, failure] = *tally->failures.begin();
      return fmt::format("node {}: {}", slot, CleanText(failure, kTextBytesMax));
    }
    // Also of what a decision would find: its rank lives, and trains on without one.
    if (std::optional<std::string> passed = PassedBy(facts.roll, *tally)) return passed;
  }
  if (!overdue.contains(version) || WaitsForDecision(facts, version)) return std::nullopt;
  return NotCompletedInTime(facts, version);
}

bool AreAllRanksThere(const RollCall& roll) {
  return roll.have_all_in_told() && std::ranges::all_of(roll.told(), [](const auto& told) {
           const auto& ranks = told.report->registered();
           const auto said = std::ranges::count_if(ranks, &RegisteredRank::has_passed_step);
           return static_cast<uint64_t>(said) >= told.report->ranks();
         });
}

Move AbandonRule(const Facts& facts) {
  Move move;
  for (const auto& [version, since] : facts.versions.since) {
    const Time end = since + facts.options.version_deadline;
    if (end > facts.now && (!move.wake || end < *move.wake)) move.wake = end;
  }
  const std::set<Version> under_way = VersionsUnderWay(facts);
  std::vector<StepUnderWay> steps;
  for (const Version version : under_way) {
    if (!IsAbandoned(facts, version)) steps.push_back({version.step, FailureOf(facts, version)});
  }
  const uint64_t lead = facts.pace.StepsIn(LeadOf(facts));
  const std::optional<Abandonment> abandonment = WhatToAbandon(steps, facts.newest_step, lead);
  if (!abandonment || AwaitsRanks(facts)) return move;
  const std::optional<Time>& last = facts.abandoning.last;
  if (const Duration pace = AbandonEvery(facts.options); last && facts.now - *last < pace) {
    move.wake = *last + pace;  // a deadline that ends before says nothing new
    return move;
  }
  move.abandons = true;
  move.write = {.abandoned = AbandonedThrough(facts, under_way.rbegin()->timeline, *abandonment)};
  return move;
}

Move CommitRule(const Facts& facts) {
  Move move;
  const std::set<Version> under_way = VersionsUnderWay(facts);
  for (auto it = under_way.rbegin(); it != under_way.rend() && !move.write; ++it) {
    const bool is_over = IsAbandoned(facts, *it) || facts.versions.rejected.contains(*it);
    if (!is_over) TryCommit(facts, *it, move);
  }
  return move;
}

}  // namespace unreft::smp
