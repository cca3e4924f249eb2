#include "smp/job/decision_rules.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/attempts.h"
#include "smp/job/cluster_records.h"
#include "smp/job/copy_choice.h"
#include "smp/job/formation.h"
#include "smp/job/fresh_start.h"
#include "smp/job/recorded.h"
#include "smp/job/refusals.h"
#include "smp/job/rewind.h"

namespace unreft::smp {
namespace {

// The decision of the record's round, for who asked. One that fails leaves who trains alone.
DecisionRecord& BeginDecision(TimelineRecord& record, DecisionKind kind) {
  const bool has_stood = record.has_decision() &&
                         record.decision().kind() != static_cast<uint32_t>(DecisionKind::kFailed);
  DecisionRecord& decision = *record.mutable_decision();
  if (kind != DecisionKind::kFailed) {
    record.clear_in_force();
  } else if (has_stood) {
    record.mutable_in_force()->Swap(&decision);
  }
  decision.Clear();
  decision.set_round(record.round());
  decision.set_attempt(record.attempt());
  decision.set_kind(static_cast<uint32_t>(kind));
  decision.mutable_asked()->Swap(record.mutable_asked());
  record.clear_asked();
  return decision;
}

constexpr char kAgain[] =
    ", again, since nothing was committed after it; if the ranks refuse it, as of another model, "
    "`unreft fresh-start` gives it up";

bool AreOfSameProcesses(const google::protobuf::RepeatedPtrField<AskingRank>& before,
                        const google::protobuf::RepeatedPtrField<AskingRank>& now) {
  return std::ranges::equal(before, now, [](const AskingRank& a, const AskingRank& b) {
    return a.rank() == b.rank() && AreOneLife(a, b);
  });
}

bool IsRestored(const DecisionRecord& decision, Version version) {
  return decision.kind() == static_cast<uint32_t>(DecisionKind::kRestored) &&
         DecisionOf(decision).version == version;
}

Move Decide(TimelineRecord record) {
  Move move;
  record.set_closing(false);
  move.write = {.timeline = std::move(record)};
  move.fault_point = "leader.decision";
  return move;
}

// Of a decision that opens a timeline.
Move DecideTimeline(const Facts& facts, TimelineRecord record) {
  Move move = Decide(std::move(record));
  EndFirstEpoch(facts.records, *move.write);
  return move;
}

Move FailRound(TimelineRecord record, const absl::Status& status) {
  DecisionRecord& decision = BeginDecision(record, DecisionKind::kFailed);
  decision.set_status_code(static_cast<uint32_t>(status.code()));
  decision.set_status_message(std::string(status.message()));
  return Decide(std::move(record));
}

// Why nothing is decided for those that ask, who have waited for long.
absl::Status WhyNot(const Facts& facts, const Asked& asked) {
  const Attempt attempt{asked.attempt};
  if (!asked.contradiction.empty()) return NotOneAttempt(attempt, asked.contradiction);
  if (asked.is_complete()) {
    return CheckMayFollow(DecisionInForce(facts.records.timeline.value), facts.roll, asked);
  }
  std::set<Rank> ranks;
  for (const auto& [rank, asking] : asked.ranks) ranks.insert(Rank{rank});
  return RanksMissing(attempt, asked.world, ranks, facts.options.restore_wait);
}

// The newest that a node has closed for, or carried out the decision of. They do so once for each
// number, and may have come further than records that were written again from a copy.
uint64_t NewestRound(const Facts& facts) {
  uint64_t newest = facts.records.timeline.value.round();
  for (const auto& [slot, report] : facts.board.reports()) {
    newest = std::max({newest, report.round_applied(), report.round_closed()});
  }
  return newest;
}

TimelineRecord NextRound(const Facts& facts, const Asked& asked) {
  TimelineRecord record = facts.records.timeline.value;
  record.set_round(NewestRound(facts) + 1);
  record.set_attempt(asked.attempt);
  record.set_world(asked.world);
  record.clear_asked();
  for (const auto& [rank, asking] : asked.ranks) *record.add_asked() = asking;
  return record;
}

// Attempts have no order: one is as good as another once all its ranks ask, and the one in force is
// over.
Move StartRound(const Facts& facts) {
  Move move;
  const DecisionRecord* in_force = DecisionInForce(facts.records.timeline.value);
  const std::vector<Asked> all = WhoAsk(facts.records, facts.roll);
  for (const Asked& asked : all) {
    if (!asked.is_complete() || !CheckMayFollow(in_force, facts.roll, asked).ok()) continue;
    TimelineRecord record = NextRound(facts, asked);
    record.set_closing(true);
    move.write = {.timeline = std::move(record)};
    return move;
  }
  for (const Asked& asked : all) {
    const auto since = facts.asked_since.find(asked.attempt);
    if (since == facts.asked_since.end()) continue;
    const Time end = since->second + facts.options.restore_wait;
    if (facts.now >= end) return FailRound(NextRound(facts, asked), WhyNot(facts, asked));
    if (!move.wake || end < *move.wake) move.wake = end;
  }
  return move;
}

// After a loss was made good in part: an attempt that comes later may find what this one does not.
std::string DescribeUnguarded(const Facts& facts) {
  const Version version = VersionOf(facts.records.commit.value);
  const DecisionRecord* in_force = DecisionInForce(facts.records.timeline.value);
  if (in_force == nullptr || !IsRestored(*in_force, version) || facts.options.parity_chunks == 0)
    return "";
  std::vector<uint64_t> slots;
  for (const auto& [member, slot, report] : facts.roll.members()) {
    if (member->lost() || !IsIn(facts.records.view.value, slot)) continue;
    const VersionHolding* held = report == nullptr ? nullptr : FindHolding(*report, version);
    if (held == nullptr || !held->guarded()) slots.push_back(slot.value);
  }
  if (slots.empty()) return "";
  return fmt::format(
      "node {} may still be making its share of version {} anew: start again before giving it up",
      absl::StrJoin(slots, ", "), version);
}

// What a lost node holds is not counted; it may only be away.
std::string DescribeLost(const RollCall& roll) {
  std::vector<uint64_t> lost;
  for (const RollCall::Entry& entry : roll.members()) {
    if (entry.member->lost()) lost.push_back(entry.slot.value);
  }
  if (lost.empty()) return "";
  return fmt::format("without node {}, lost: whatever comes back with its memory counts again",
                     absl::StrJoin(lost, ", "));
}

// Every node that holds something of the version reads it again in this round; none when all have.
std::optional<Move> ReadAgain(const Facts& facts, Version version, bool want_manifests) {
  Move move{.waits = true};  // the answers run the rules again
  bool all = true;
  for (const auto& [slot, report] : facts.roll.told()) {
    if (FindHolding(*report, version) == nullptr) continue;
    const RoundReading::Life life = RoundReading::LifeOf(slot, *report);
    if (facts.reading.IsRead(life, version)) continue;
    all = false;
    if (facts.reading.IsUnderWay(life, version)) continue;
    move.ask_reading.push_back({life, version, want_manifests});
  }
  if (all) return std::nullopt;
  return move;
}

bool CaptureBegan(const Facts& facts) {
  const Timeline newest = NewestTimeline(facts.records.timeline.value);
  // What is not known may have begun.
  return !facts.roll.have_all_told() ||
         std::ranges::any_of(facts.roll.told(), [&](const auto& told) {
           return told.report->newest_timeline() == newest.value && told.report->capture_began();
         });
}

// Later than all that are recorded and those of the record, which may have got a copy's.
Timeline NextTimelineOf(const Facts& facts, const TimelineRecord& record) {
  const Timeline newest = NewestTimeline(facts.records.timeline.value);
  if (NumberOf(NewestTimeline(record)) <= NumberOf(newest)) return facts.next_timeline;
  return NextTimeline(NewestTimeline(record), static_cast<uint32_t>(facts.next_timeline.value));
}

// Until a capture begins in a timeline, the same decision for the same processes opens no other.
// For others it does: somebody who was told of that one may live on. So does a new formation: all
// versions of a timeline are encoded in the same groups.
void OpenUnlessAgain(const Facts& facts, Version parent, bool is_formed_anew,
                     TimelineRecord& record) {
  const recovery::TimelineChain chain = ChainOf(record);
  const DecisionRecord* in_force = DecisionInForce(record);
  const bool again = !is_formed_anew && in_force != nullptr &&
                     AreOfSameProcesses(in_force->asked(), record.asked());
  if (again && chain.ParentOf(chain.newest()) == parent && !CaptureBegan(facts)) return;
  OpenTimeline(NextTimelineOf(facts, record), parent, record);
}

// What is decided, with the view in the same Txn.
Move WithFormation(std::optional<Formation> formation, Move decided) {
  if (!formation) return decided;
  decided.write->view = std::move(formation->view);
  for (Line& line : formation->say) decided.say.push_back(std::move(line));
  return decided;
}

// `copy`: that the version was loaded from; null when memory had it.
Move EndRound(const Facts& facts, const recovery::Restorable& restorable, const DurableCopy* copy) {
  TimelineRecord record = facts.records.timeline.value;
  if (copy != nullptr) {
    SetChain(ChainForCopies(facts), record);
    record.set_run(copy->run());
    // Nodes that were away meanwhile know the job by it.
    if (record.first_timeline() == 0) record.set_first_timeline(copy->order.first_timeline());
  }
  const DecisionRecord* in_force = DecisionInForce(record);
  const bool is_again = in_force != nullptr && IsRestored(*in_force, restorable.version);
  std::optional<Formation> formation = NextFormation(facts);
  OpenUnlessAgain(facts, restorable.version, formation.has_value(), record);
  DecisionRecord& decision = BeginDecision(record, DecisionKind::kRestored);
  decision.set_timeline(NewestTimeline(record).value);
  decision.set_version_timeline(restorable.version.timeline.value);
  decision.set_version_step(restorable.version.step.value);
  SetHolders(restorable.holders, *decision.mutable_holders());
  if (copy != nullptr) decision.set_copy(copy->directory);
  CommitRecord commit;
  SetVersion(restorable.version, commit);
  commit.set_world(restorable.world);
  commit.set_view(facts.records.view.value.number());
  SetGroups(restorable.groups, *commit.mutable_groups());
  SetHolders(restorable.holders, *commit.mutable_holders());
  std::string line = fmt::format("decision {}: version {} for attempt {} opens timeline {}{}",
                                 record.round(), restorable.version, record.attempt(),
                                 Timeline{decision.timeline()}, is_again ? kAgain : "");
  PinRecord pins = facts.records.pins.value;
  const bool was_ordered = OrderedVersion(record).has_value();
  EndRewind(record, pins);
  Move move = DecideTimeline(facts, std::move(record));
  if (was_ordered) move.write->pins = std::move(pins);
  move.write->commit = std::move(commit);
  move.say.push_back({LogLevel::kInfo, std::move(line)});
  if (copy != nullptr) {
    move.say.push_back(
        {LogLevel::kWarn, fmt::format("version {} comes out of the durable copy {}: {}",
                                      restorable.version, CleanText(copy->directory, kTextBytesMax),
                                      DescribeLoss(facts.records, *copy))});
  }
  return WithFormation(std::move(formation), std::move(move));
}

Move EndRoundFresh(const Facts& facts) {
  TimelineRecord record = facts.records.timeline.value;
  std::optional<Formation> formation = NextFormation(facts);
  OpenUnlessAgain(facts, Version{}, formation.has_value(), record);
  DecisionRecord& decision = BeginDecision(record, DecisionKind::kFresh);
  decision.set_timeline(NewestTimeline(record).value);
  return WithFormation(std::move(formation), DecideTimeline(facts, std::move(record)));
}

Move FailUnrestorable(const Facts& facts) {
  const meta::JobState& records = facts.records;
  const CommitRecord& commit = records.commit.value;
  const std::string missing =
      recovery::DescribeUnrestorable(HoldingsOf(facts.roll), GroupsOf(records.view.value.groups()),
                                     ChainOf(records.timeline.value));
  return FailRound(records.timeline.value,
                   Unrecoverable(VersionOf(commit), commit.world(), "the nodes'",
                                 {missing, DescribeLost(facts.roll), DescribeUnguarded(facts),
                                  facts.reading.last_problem(), DescribeCopies(facts)}));
}

// Nothing else is restored in its place.
Move FailRewound(const Facts& facts, Version ordered) {
  std::string missing;
  (void)recovery::FindHolders(ordered, HeldOf(facts.roll, ordered),
                              RecordedGroupsOf(facts.records, ordered), &missing);
  return FailRound(facts.records.timeline.value, OrderedIsNotWhole(ordered, missing));
}

// Whether all that count have stopped, and told what they hold.
bool IsClosed(const Facts& facts) {
  const uint64_t round = facts.records.timeline.value.round();
  return facts.roll.have_all_told() &&
         std::ranges::all_of(facts.roll.told(), [&](const auto& told) {
           return told.report->round_closed() == round;
         });
}

// A node with ranks whose daemon is of a release before another number of ranks could restore.
std::optional<NodeSlot> FindOneOfOneWorld(const RollCall& roll) {
  for (const auto& [slot, report] : roll.told()) {
    if (report->ranks() > 0 && !report->any_world()) return slot;
  }
  return std::nullopt;
}

// The decision for this version, or what is to be known before; none if it is no candidate. `copy`
// as for EndRound.
std::optional<Move> DecideOn(const Facts& facts, Version version, const DurableCopy* copy) {
  const TimelineRecord& record = facts.records.timeline.value;
  const auto restorable = recovery::FindHolders(version, HeldOf(facts.roll, version),
                                                RecordedGroupsOf(facts.records, version), nullptr);
  if (!restorable) return std::nullopt;
  if (restorable->world != record.world()) {
    if (const std::optional<NodeSlot> earlier = FindOneOfOneWorld(facts.roll)) {
      return FailRound(record, OtherWorld(version, restorable->world, Attempt{record.attempt()},
                                          record.world(), *earlier));
    }
  }
  // A version that was not committed has not been checked as a whole yet.
  const bool is_committed = version == VersionOf(facts.records.commit.value);
  if (std::optional<Move> move = ReadAgain(facts, version, !is_committed)) return move;
  absl::Status status =
      is_committed ? absl::OkStatus() : facts.layouts.Check(facts.reading.ManifestsOf(version));
  if (status.ok()) return EndRound(facts, *restorable, copy);
  Move move;
  move.misfit = version;
  move.say.push_back({LogLevel::kWarn, fmt::format("version {} is no candidate: {}", version,
                                                   std::string(status.message()))});
  return move;
}

// What the ranks of the round ask for is not to be had; nothing newer is restored in its place.
std::optional<Move> FailTooNew(const Facts& facts, Step at_or_before) {
  const RewindReply can = DescribeRewind(facts.records, facts.roll);
  const bool is_any_newer = std::ranges::any_of(
      can.versions(),
      [at_or_before](const RewindVersion& version) { return version.step() > at_or_before.value; });
  if (!is_any_newer) return std::nullopt;
  return FailRound(facts.records.timeline.value, NothingAtOrBefore(at_or_before, can));
}

// A part of it may be there by now.
bool IsOfChosenCopy(const Facts& facts, Version version) {
  return facts.copies.chosen() && facts.copies.chosen()->version() == version;
}

// Of a copy whose slabs the nodes have said that they have.
Move DecideOnLoaded(const Facts& facts, const DurableCopy& copy) {
  const TimelineRecord& record = facts.records.timeline.value;
  const Version version = copy.version();
  if (facts.reading.IsMisfit(version)) {
    return FailRound(record,
                     CopyNotRestored(copy.directory, version, "its slabs do not fit together"));
  }
  if (std::optional<Move> move = DecideOn(facts, version, &copy)) return *std::move(move);
  Move move{.waits = true};
  move.wake = facts.copies.loaded_at() + facts.options.verify_timeout;
  if (facts.now < *move.wake) return move;
  std::string missing;
  (void)recovery::FindHolders(version, HeldOf(facts.roll, version),
                              RecordedGroupsOf(facts.records, version), &missing);
  return FailRound(record, CopyNotRestored(copy.directory, version, missing));
}

// This node does not know where copies may be. None if nobody else does either.
std::optional<Move> MissCopies(const Facts& facts) {
  const auto knows = std::ranges::find_if(
      facts.roll.told(), [](const auto& told) { return told.report->knows_copies(); });
  if (knows == facts.roll.told().end() || WasGivenUp(facts.records)) return std::nullopt;
  return FailRound(facts.records.timeline.value,
                   CopiesNotLookedFor(facts.options.node, knows->slot));
}

// What is restored where nothing in memory can be: the newest durable copy, once it is loaded. None
// if there is none.
std::optional<Move> DecideOnCopy(const Facts& facts, std::optional<Step> at_or_before) {
  const TimelineRecord& record = facts.records.timeline.value;
  const RoundCopies& copies = facts.copies;
  switch (copies.state()) {
    case RoundCopies::State::kNowhere:
      return MissCopies(facts);
    case RoundCopies::State::kUnasked:
      return Move{.search_copies = true, .waits = true};
    case RoundCopies::State::kSearching:
    case RoundCopies::State::kLoading:
      return Move{.waits = true};
    case RoundCopies::State::kLoaded:
      return DecideOnLoaded(facts, *copies.chosen());
    case RoundCopies::State::kFailed:
      if (WasGivenUp(facts.records)) return std::nullopt;
      return FailRound(record, CopiesNotRead(copies.problem()));
    case RoundCopies::State::kFound:
      break;
  }
  const absl::StatusOr<std::optional<DurableCopy>> chosen = ChooseCopy(facts, at_or_before);
  if (!chosen.ok()) return FailRound(record, chosen.status());
  if (chosen->has_value()) {
    Move move{.waits = true};
    auto homes = HomesForCopy(facts, **chosen);
    // Where all members are lost, none is there to load it before the next view.
    if (!homes.empty()) move.load_copy = CopyLoad{**chosen, std::move(homes)};
    return move;
  }
  if (facts.records.commit.value.world() != 0) return std::nullopt;
  // The job begins anew. Copies of other runs were given up by who has ordered that.
  if (WasGivenUp(facts.records) && !AreCopiesOfJob(facts)) return std::nullopt;
  // Here that would be a guess.
  if (!copies.damaged().empty()) {
    return FailRound(record, CopiesNotRead(absl::DataLossError(copies.damaged())));
  }
  if (!copies.copies().empty()) {
    return FailRound(record, CopiesNotRead(absl::FailedPreconditionError(DescribeCopies(facts))));
  }
  return std::nullopt;
}

// The round that is under way, of which some node would hear nothing any more.
Move Renumber(const Facts& facts) {
  TimelineRecord record = facts.records.timeline.value;
  record.set_round(NewestRound(facts) + 1);
  Move move;
  move.write = {.timeline = std::move(record)};
  return move;
}

Move ContinueRound(const Facts& facts) {
  const TimelineRecord& record = facts.records.timeline.value;
  if (NewestRound(facts) > record.round()) return Renumber(facts);
  if (!IsClosed(facts)) return {.waits = true};
  const recovery::TimelineChain chain = ChainOf(record);
  const std::optional<Version> ordered = OrderedVersion(record);
  const std::optional<Step> at_or_before = AskedAtOrBefore(record.asked());
  if (ordered && at_or_before && ordered->step > *at_or_before) {
    return FailRound(record, OrderedIsNewer(*ordered, *at_or_before));
  }
  const auto& named = facts.board.versions();
  for (auto it = named.rbegin(); it != named.rend(); ++it) {
    const Version version = it->first;
    const bool is_out =
        (ordered && version != *ordered) || (at_or_before && version.step > *at_or_before) ||
        IsOfChosenCopy(facts, version) || !chain.IsLive(version) ||
        IsAbandoned(facts.records.abandoned.value, version) || facts.reading.IsMisfit(version) ||
        facts.versions.rejected.contains(version);
    if (is_out) continue;
    if (std::optional<Move> move = DecideOn(facts, version, nullptr)) return *std::move(move);
  }
  if (ordered) return FailRewound(facts, *ordered);
  if (at_or_before) {
    if (std::optional<Move> move = FailTooNew(facts, *at_or_before)) return *std::move(move);
  }
  if (std::optional<Move> move = DecideOnCopy(facts, at_or_before)) return *std::move(move);
  const bool is_fresh = facts.records.commit.value.world() == 0;
  return is_fresh ? EndRoundFresh(facts) : FailUnrestorable(facts);
}

}  // namespace

Move DecisionRule(const Facts& facts) {
  return facts.records.timeline.value.closing() ? ContinueRound(facts) : StartRound(facts);
}

}  // namespace unreft::smp
