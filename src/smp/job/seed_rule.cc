#include "smp/job/seed_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/format.h"
#include "meta/groups.h"
#include "smp/job/cluster_records.h"
#include "smp/job/formation.h"
#include "smp/job/recorded.h"
#include "smp/job/roll_call.h"
#include "smp/job/view_rules.h"

namespace unreft::smp {
namespace {

// The newest of those that have reported.
std::optional<Keeper> NewestThatReports(const Facts& facts) {
  std::optional<Keeper> newest;
  for (const auto& [slot, report] : facts.board.reports()) {
    const PresenceRecord* const present = facts.records.PresenceOf(slot);
    // Of an earlier memory or process: it is told again.
    const bool is_of_now = present != nullptr && present->incarnation() == report.incarnation() &&
                           present->session() == report.session();
    if (!is_of_now || facts.seed.strange.contains(present->address())) continue;
    const meta::Stamp stamp{report.kept_epoch(), report.kept_sequence()};
    if (!newest || stamp > newest->stamp) newest = {slot, present->address(), stamp};
  }
  return newest;
}

Time EndOfWait(const Facts& facts) { return facts.seed.since + facts.options.lost_grace; }

// Of those that wait for their slot, too: where all memory was lost, nobody else is there. Who can
// be waited for no longer, and does not give what it says it has, is passed over.
std::optional<Keeper> NewestKeeper(const Facts& facts, std::optional<Keeper> newest) {
  const bool is_over = facts.now >= EndOfWait(facts);
  for (const auto& [place, waiting] : facts.records.waiting) {
    const WaitingRecord& record = waiting.value;
    const PresenceRecord& presence = record.presence();
    const meta::Stamp stamp{record.kept_epoch(), record.kept_sequence()};
    if (is_over && facts.seed.deaf.contains(presence.address())) continue;
    if (facts.seed.strange.contains(presence.address())) continue;
    if (stamp > (newest ? newest->stamp : meta::Stamp{})) {
      newest = {NodeSlot{presence.slot()}, presence.address(), stamp};
    }
  }
  return newest;
}

// Whether every memory that the view names has told. Else others may know more, which have yet to
// see that the store is another one, and to say so where they wait for their slots.
bool HaveAllTold(const Facts& facts, const ViewRecord& view) {
  const RollCall roll(view, facts.records.present, facts.board.reports());
  return roll.told().size() == static_cast<size_t>(view.members_size()) && roll.have_all_told();
}

// Whether the groups are such as the options ask for, of as many nodes as are in. The job may have
// been started anew with others, when all that it had in memory was gone.
bool IsAsAskedFor(const ViewRecord& view, const NodeOptions& options) {
  uint64_t grouped = 0;
  for (const Group& group : view.groups()) grouped += static_cast<uint64_t>(group.slots_size());
  const ec::CodeShape shape = meta::ShapeFor(grouped, options.data_chunks, options.parity_chunks);
  const auto is_as_asked = [&](const Group& group) {
    const auto parities = static_cast<uint32_t>(group.slots_size()) - group.k();
    return AreAllIn(view) ? parities == shape.m : parities <= shape.m;
  };
  return static_cast<uint64_t>(view.members_size()) == options.nodes && shape.k > 0 &&
         static_cast<uint64_t>(view.groups_size()) == grouped / (shape.k + shape.m) &&
         std::ranges::all_of(view.groups(), is_as_asked);
}

// What the store says otherwise is written as it was kept.
template <typename Message>
std::optional<Message> Kept(const meta::Shared<Message>& kept, const meta::Shared<Message>& now) {
  if (kept.bytes == now.bytes) return std::nullopt;
  return kept.value;
}

void AddKept(const Facts& facts, const meta::RecordCopy& kept, Move& move) {
  meta::JobChange& change = *move.write;
  change.timeline = Kept(kept.records.timeline, facts.records.timeline);
  change.commit = Kept(kept.records.commit, facts.records.commit);
  change.abandoned = Kept(kept.records.abandoned, facts.records.abandoned);
  change.pins = Kept(kept.records.pins, facts.records.pins);
  if (facts.options.has_own_store) return;  // which is empty at each start
  move.say.push_back(
      {LogLevel::kWarn,
       fmt::format("the meta store has lost records: timeline {} and the commit of version {} are "
                   "written again as the nodes have kept them",
                   NewestTimeline(kept.records.timeline.value),
                   VersionOf(kept.records.commit.value))});
}

}  // namespace

bool IsBehind(const meta::JobState& records, const meta::Stamp& kept) {
  return kept > meta::Stamp{records.seed.value.epoch(), records.stamp().sequence};
}

Move SeedRule(const Facts& facts) {
  if (facts.records.IsSeeded()) return {};
  const std::optional<Keeper> told = NewestThatReports(facts);
  const std::optional<Keeper> keeper = NewestKeeper(facts, told);
  Move move{.waits = true};
  const meta::Stamp in_hand = facts.kept == nullptr ? meta::Stamp{} : facts.kept->stamp;
  if (keeper && keeper->stamp > in_hand && IsBehind(facts.records, keeper->stamp)) {
    move.ask_kept = keeper;
    return move;
  }
  const bool is_behind = IsBehind(facts.records, in_hand);
  const meta::JobRecords& known = is_behind ? facts.kept->records : facts.records;
  // Where this process has the store, nobody else can be the slot's memory.
  const bool has_view = known.view.exists() && !facts.options.has_own_store &&
                        IsAsAskedFor(known.view.value, facts.options);
  if (has_view && facts.now < EndOfWait(facts) && !HaveAllTold(facts, known.view.value)) {
    move.wake = EndOfWait(facts);
    return move;
  }
  if (has_view) {
    // Once all memories are lost that could say more, the store's own records stand.
    move = ViewAgain(facts, known.view.value);
  } else if (told) {
    move = FirstView(facts);
  }
  move.wake = facts.absences.NextEnd(facts.now);
  if (!move.write) return move;
  if (is_behind) AddKept(facts, *facts.kept, move);
  SeedRecord& seed = move.write->seed.emplace();
  seed.set_store_id(facts.records.store_id);
  const uint64_t epoch_told = std::max(keeper ? keeper->stamp.epoch : 0, in_hand.epoch);
  seed.set_epoch(std::max(epoch_told, facts.records.seed.value.epoch()) + 1);
  return move;
}

}  // namespace unreft::smp
