#include "smp/job/seed_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

// What the nodes know and the records do not.
struct Lost {
  const NodeReport* chain = nullptr;   // of the newest decision
  const NodeReport* commit = nullptr;  // of the newest in that decision's timeline
  uint64_t round = 0;                  // the newest that was begun
  bool is_decided = false;  // the round that the records say is under way, or a later one

  bool Any() const { return chain != nullptr || commit != nullptr || is_decided; }
};

Version CommittedOf(const NodeReport& report) {
  return {Timeline{report.committed_timeline()}, Step{report.committed_step()}};
}

Lost FindLost(const Facts& facts) {
  const TimelineRecord& timeline = facts.records.timeline.value;
  Lost lost;
  Timeline newest = NewestTimeline(timeline);
  for (const auto& [slot, report] : facts.roll.told()) {
    if (NewestTimeline(*report) <= newest) continue;
    newest = NewestTimeline(*report);
    lost.chain = report;
  }
  lost.round = timeline.round();
  // What is recorded is of before a decision that is not.
  Version committed = lost.chain == nullptr ? VersionOf(facts.records.commit.value) : Version{};
  for (const auto& [slot, report] : facts.roll.told()) {
    const uint64_t round = std::max(report->round_applied(), report->round_closed());
    lost.is_decided |= round > timeline.round() ||
                       (timeline.closing() && report->round_applied() >= timeline.round());
    lost.round = std::max(lost.round, round);
    // Who has not heard of the newest decision yet may know a commit from which it steps back.
    const bool is_current = report->newest_timeline() == newest.value;
    // A fresh start is a commit of nothing, on a timeline of its own.
    if (!is_current || CommittedOf(*report) <= committed) continue;
    committed = CommittedOf(*report);
    lost.commit = report;
  }
  return lost;
}

TimelineRecord WithChain(TimelineRecord timeline, const Lost& lost) {
  if (lost.chain != nullptr) *timeline.mutable_chain() = lost.chain->chain();
  if (lost.is_decided) {
    timeline.set_round(lost.round);
    timeline.set_closing(false);
  }
  timeline.clear_decision();  // whoever follows a later one has not missed it
  timeline.clear_asked();
  return timeline;
}

CommitRecord CommitOf(const Facts& facts, const NodeReport& report) {
  const ViewRecord& view = facts.records.view.value;
  const Version committed = CommittedOf(report);
  CommitRecord commit;
  SetVersion(committed, commit);
  commit.set_world(report.committed_world());
  commit.set_view(view.number());
  const std::vector<recovery::CodedGroup> recorded = CodedGroupsOf(view.groups());
  SetGroups(recovery::EncodedGroups(HeldOf(facts.roll, committed), recorded),
            *commit.mutable_groups());
  return commit;
}

Move WriteAgain(const Facts& facts, const Lost& lost) {
  TimelineRecord timeline = WithChain(facts.records.timeline.value, lost);
  CommitRecord commit;
  if (lost.commit != nullptr) {
    commit = CommitOf(facts, *lost.commit);
  } else if (lost.chain == nullptr) {
    commit = facts.records.commit.value;
  }
  Move move;
  move.say.push_back(
      {LogLevel::kWarn,
       fmt::format("the meta store has lost records: timeline {} and the commit of version {} are "
                   "written again from what the nodes remember",
                   NewestTimeline(timeline), VersionOf(commit))});
  move.write = {.timeline = std::move(timeline), .commit = std::move(commit)};
  return move;
}

// Else some ranks would capture all they hold and others a part of it, which fit no version.
Move WriteCaptureModeAgain(const Facts& facts) {
  Move move;
  AbandonRecord record = facts.records.abandoned.value;
  record.set_full_capture_from_timeline(1);
  record.set_disagreement("replicas were found to differ, as the nodes remember");
  move.say.push_back({LogLevel::kWarn,
                      "the meta store has lost that replicas differ: it is written again from what "
                      "the nodes remember"});
  move.write = {.abandoned = std::move(record)};
  return move;
}

bool HasLostCaptureMode(const Facts& facts) {
  return facts.records.abandoned.value.full_capture_from_timeline() == 0 &&
         std::ranges::any_of(facts.roll.told(),
                             [](const auto& told) { return told.report->captures_all(); });
}

}  // namespace

Move SeedRule(const Facts& facts) {
  Move move;
  const bool is_seeded = facts.seeded == facts.records.store_id;
  if (!facts.roll.have_all_told()) {
    move.waits = !is_seeded;  // once it is known that nothing is lost, nobody is waited for
    return move;
  }
  if (const Lost lost = FindLost(facts); lost.Any()) return WriteAgain(facts, lost);
  if (HasLostCaptureMode(facts)) return WriteCaptureModeAgain(facts);
  if (!is_seeded) move.seeded = facts.records.store_id;
  return move;
}

}  // namespace unreft::smp
