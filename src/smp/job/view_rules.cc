#include "smp/job/view_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "smp/job/attempts.h"
#include "smp/job/cluster_records.h"
#include "smp/job/formation.h"

namespace unreft::smp {
namespace {

// How ill a spare fits into a slot's group; 0: it is like the node that was lost.
int SparePenalty(const ViewRecord& view, NodeSlot slot, const SpareRecord& spare) {
  const std::string& domain = spare.presence().failure_domain();
  int penalty = 0;
  for (const Group& group : view.groups()) {
    const auto& slots = group.slots();
    if (std::find(slots.begin(), slots.end(), slot.value) == slots.end()) continue;
    for (const ViewMember& member : view.members()) {
      const bool is_beside = member.slot() != slot.value &&
                             std::find(slots.begin(), slots.end(), member.slot()) != slots.end();
      if (member.slot() == slot.value && member.failure_domain() != domain) ++penalty;
      if (is_beside && !domain.empty() && member.failure_domain() == domain) penalty += 2;
    }
  }
  return penalty;
}

std::string DescribeLoss(const ViewRecord& view, const ViewMember& lost, Duration grace) {
  const std::string absence =
      fmt::format("node {} is lost: its daemon has been absent for more than {} ms.", lost.slot(),
                  grace / std::chrono::milliseconds(1));
  if (!IsIn(view, NodeSlot{lost.slot()})) return absence + " It was in no protection group";
  std::string group;
  for (const Group& of : view.groups()) {
    if (std::ranges::find(of.slots(), lost.slot()) == of.slots().end()) continue;
    group = fmt::format(" Its group (nodes {}) stands one loss less.", fmt::join(of.slots(), ", "));
  }
  return absence + group +
         " Nothing is committed until a daemon takes its slot - start it again, or one with "
         "--spare - or the job restarts without it";
}

std::string DescribeView(const ViewRecord& view) {
  std::vector<uint64_t> lost;
  std::vector<uint64_t> to_come;
  for (const ViewMember& member : view.members()) {
    if (member.lost()) (HasNotCome(member) ? to_come : lost).push_back(member.slot());
  }
  std::string text =
      fmt::format("view {}: {} nodes, {}", view.number(), view.members_size(),
                  lost.empty() ? "none is lost"
                               : fmt::format("of which node {} is lost", fmt::join(lost, ", ")));
  if (to_come.empty()) return text;
  return text + fmt::format("; node {} has not come yet", fmt::join(to_come, ", "));
}

std::string WhichMemory(const ViewMember& before, const ViewMember& now,
                        const std::optional<meta::Takeover>& takeover) {
  if (HasNotCome(before)) return "come";
  if (!takeover || takeover->slot.value != now.slot()) return "new memory";
  if (!takeover->returns) return fmt::format("new memory, that of spare {}", takeover->place);
  return fmt::format(
      "its earlier memory again, that of place {}: its ranks live, and none is with the one that "
      "took the slot",
      takeover->place);
}

// What a view that is to be written is like, and what goes with it.
struct Wanted {
  ViewRecord view;
  std::optional<meta::Takeover> takeover;
  std::vector<NodeSlot> absent;  // that are lost from now on
  std::vector<Line> say;
};

// Who is there for the member. Another memory than the view names is so only once that one is lost,
// or where the store went back and a later view had named it already. A slot may show one that has
// no right to it: its daemon held the key in a store that had no view.
const PresenceRecord* WhoIsThereFor(const Facts& facts, const ViewMember& member) {
  const NodeSlot slot{member.slot()};
  const PresenceRecord* const presence = facts.records.PresenceOf(slot);
  if (presence == nullptr || member.lost() || presence->incarnation() == member.incarnation()) {
    return presence;
  }
  const NodeReport* const report = facts.board.Of(slot);
  const bool was_in_it = report != nullptr && report->incarnation() == presence->incarnation() &&
                         report->view() >= facts.records.view.value.number();
  return was_in_it ? presence : nullptr;
}

// By what is present it stays as it is.
bool IsAsItIs(const Facts& facts, const ViewMember& member) {
  const PresenceRecord* const presence = WhoIsThereFor(facts, member);
  if (presence == nullptr) {
    return member.lost() || !facts.absences.IsOverdue(NodeSlot{member.slot()}, facts.now);
  }
  return !member.lost() && member.incarnation() == presence->incarnation() && member.has_place() &&
         member.place() == PlaceOf(*presence);
}

void GiveTo(const PresenceRecord& presence, uint64_t place, const NodeOptions& options,
            ViewMember& member, ViewRecord& view) {
  member.set_incarnation(presence.incarnation());
  member.set_failure_domain(presence.failure_domain());
  member.set_place(place);
  member.set_lost(false);
  view.set_exposure(ExposureOf(view, options));
}

// Members by what is present, the others as they were; lost once their grace has run out.
ViewRecord ByPresence(const Facts& facts) {
  ViewRecord wanted = facts.records.view.value;
  for (ViewMember& member : *wanted.mutable_members()) {
    if (const PresenceRecord* presence = WhoIsThereFor(facts, member)) {
      GiveTo(*presence, PlaceOf(*presence), facts.options, member, wanted);
    } else if (facts.absences.IsOverdue(NodeSlot{member.slot()}, facts.now)) {
      member.set_lost(true);
    }
  }
  return wanted;
}

// The first lost slot; one that is in a group comes before those that are left out. One whose node
// has not come yet is kept for it: nothing was lost with it that a spare could make good.
ViewMember* FirstLost(ViewRecord& view) {
  ViewMember* lost = nullptr;
  for (ViewMember& member : *view.mutable_members()) {
    if (!member.lost() || HasNotCome(member)) continue;
    if (IsIn(view, NodeSlot{member.slot()})) return &member;
    if (lost == nullptr) lost = &member;
  }
  return lost;
}

// Of the spares that wait, one for a lost slot: of the lost node's failure domain, if there is one,
// else of one that none of its group is in.
std::optional<meta::Takeover> AssignSpare(const Facts& facts, ViewRecord& wanted) {
  auto spares = facts.records.spares;
  std::erase_if(spares, [](const auto& spare) { return spare.second.value.lease() == 0; });
  ViewMember* const member = FirstLost(wanted);
  if (spares.empty() || member == nullptr) return std::nullopt;
  const NodeSlot slot{member->slot()};
  const auto best = std::ranges::min_element(spares, {}, [&](const auto& spare) {
    return SparePenalty(wanted, slot, spare.second.value);
  });
  const uint64_t place = best->first;
  GiveTo(best->second.value.presence(), place, facts.options, *member, wanted);
  return meta::Takeover{place, slot};
}

// Whether no more is lacking for an attempt than the ranks that ask at memories which wait: they
// ask nowhere else. Those that an attempt which is over has left there wait for others in vain.
bool WouldComplete(const Facts& facts, const WaitingRecord& waiting) {
  uint64_t asking = 0;
  for (const auto& [place, other] : facts.records.waiting) {
    if (other.value.attempt() == waiting.attempt()) asking += other.value.asking();
  }
  for (const Asked& asked : WhoAsk(facts.records, facts.roll)) {
    if (asked.attempt == waiting.attempt()) asking += asked.ranks.size();
  }
  return asking >= waiting.world();
}

// A memory that was replaced while its daemon was away has its slot again if its ranks live, and
// none is with the one that took it: nothing can be committed, or decided, without them.
std::optional<meta::Takeover> GiveSlotBack(const Facts& facts, ViewRecord& wanted) {
  const meta::JobState& records = facts.records;
  if (records.timeline.value.closing()) return std::nullopt;
  for (const auto& [place, waiting] : records.waiting) {
    const PresenceRecord& presence = waiting.value.presence();
    if (waiting.value.lease() == 0 || waiting.value.ranks() == 0) continue;
    const bool any_trains = waiting.value.ranks() > waiting.value.asking();
    if (!any_trains && !WouldComplete(facts, waiting.value)) continue;
    for (ViewMember& member : *wanted.mutable_members()) {
      if (member.slot() != presence.slot() || member.lost()) continue;
      if (member.incarnation() == presence.incarnation()) continue;
      const NodeReport* const report = ReportOf(member, records.present, facts.board.reports());
      if (report == nullptr || report->ranks() > 0 || report->asking_size() > 0) continue;
      GiveTo(presence, place, facts.options, member, wanted);
      return meta::Takeover{.place = place, .slot = NodeSlot{member.slot()}, .returns = true};
    }
  }
  return std::nullopt;
}

void DescribeChange(const Facts& facts, const ViewMember& before, const ViewMember& now,
                    Wanted& wanted) {
  if (now.lost() && !before.lost()) {
    wanted.say.push_back(
        {LogLevel::kWarn, DescribeLoss(wanted.view, now, facts.options.lost_grace)});
    const NodeSlot slot{now.slot()};
    if (!facts.records.present.contains(slot)) wanted.absent.push_back(slot);
  }
  if (now.lost()) return;
  const char* const until =
      IsIn(wanted.view, NodeSlot{now.slot()}) ? "" : "; it is left out until the job restarts";
  if (now.incarnation() != before.incarnation()) {
    wanted.say.push_back(
        {LogLevel::kInfo, fmt::format("node {} has {}{}", now.slot(),
                                      WhichMemory(before, now, wanted.takeover), until)});
  } else if (before.lost()) {
    wanted.say.push_back({LogLevel::kInfo, fmt::format("node {} is back, with all that it held{}",
                                                       now.slot(), until)});
  }
}

// None if it is the one that there is.
std::optional<Wanted> NextView(const Facts& facts) {
  const ViewRecord& view = facts.records.view.value;
  const bool stays = std::ranges::all_of(
      view.members(), [&](const ViewMember& member) { return IsAsItIs(facts, member); });
  const bool has_lost = std::ranges::any_of(view.members(), &ViewMember::lost);
  const bool can_move =
      (has_lost && !facts.records.spares.empty()) || !facts.records.waiting.empty();
  if (stays && !can_move) return std::nullopt;
  Wanted wanted{.view = ByPresence(facts)};
  wanted.takeover = AssignSpare(facts, wanted.view);
  if (!wanted.takeover) wanted.takeover = GiveSlotBack(facts, wanted.view);
  if (stays && !wanted.takeover) return std::nullopt;
  for (int i = 0; i < view.members_size(); ++i) {
    DescribeChange(facts, view.members(i), wanted.view.members(i), wanted);
  }
  return wanted;
}

// False as long as it cannot be said.
bool FormFirstGroups(const Facts& facts, Wanted& wanted) {
  std::vector<NodeSlot> nodes;
  std::vector<uint64_t> to_come;
  for (const ViewMember& member : wanted.view.members()) {
    if (HasNotCome(member)) {
      to_come.push_back(member.slot());
      continue;
    }
    const bool has_told = ReportOf(member, facts.records.present, facts.board.reports()) != nullptr;
    if (!has_told) return false;  // to come
    nodes.push_back(NodeSlot{member.slot()});
  }
  const absl::Status formed = FormGroups(nodes, facts.options, wanted.view);
  if (!formed.ok()) {
    wanted.say.push_back(
        {LogLevel::kError, fmt::format("no protection groups: {}", formed.message())});
    return false;
  }
  if (!to_come.empty()) {
    wanted.say.push_back(
        {LogLevel::kInfo,
         fmt::format(
             "the job begins with {} of {} nodes: node {} is left out until it has come and "
             "the job restarts",
             nodes.size(), wanted.view.members_size(), fmt::join(to_come, ", "))});
  }
  if (const std::string& exposure = wanted.view.exposure(); !exposure.empty()) {
    wanted.say.push_back({LogLevel::kWarn, fmt::format("protection: {}", exposure)});
  }
  return true;
}

// Whether those are overdue that are not present, and enough are. Where somebody who is present
// knows of the job it is not begun anew without the others, who may know more.
bool MayBeginWithout(const Facts& facts, const std::set<NodeSlot>& slots) {
  const Presences& present = facts.records.present;
  if (present.size() < facts.options.NodesMin() || !IsOfNewJob(facts.board.reports())) return false;
  return std::ranges::all_of(slots, [&](NodeSlot slot) {
    return present.contains(slot) || facts.absences.IsOverdue(slot, facts.now);
  });
}

Move WriteView(const Facts& facts, Wanted wanted) {
  wanted.view.set_number(NextViewNumber(facts, wanted.view));
  wanted.say.push_back({LogLevel::kInfo, DescribeView(wanted.view)});
  Move move;
  move.say = std::move(wanted.say);
  move.write = {.view = std::move(wanted.view),
                .takeover = wanted.takeover,
                .absent = std::move(wanted.absent)};
  return move;
}

}  // namespace

bool IsOfNewJob(const Reports& reports) {
  return std::ranges::all_of(reports, [](const auto& entry) {
    const NodeReport& report = entry.second;
    return report.kept_epoch() == 0 && report.kept_sequence() == 0 && report.view() == 0;
  });
}

Move FirstView(const Facts& facts) {
  Move move{.waits = true};
  const Presences& present = facts.records.present;
  std::set<NodeSlot> slots;
  for (const auto& [slot, presence] : present) slots.insert(slot);
  // Of one node, whose store is its own, the slot may be any.
  const uint64_t nodes = facts.options.has_own_store ? 0 : facts.options.nodes;
  for (uint64_t slot = 0; slot < nodes; ++slot) slots.insert(NodeSlot{slot});
  if (present.size() < slots.size() && !MayBeginWithout(facts, slots)) return move;
  Wanted wanted;
  for (const NodeSlot slot : slots) {
    ViewMember& member = *wanted.view.add_members();
    member.set_slot(slot.value);
    member.set_place(slot.value);
    member.set_lost(true);
    const auto found = present.find(slot);
    if (found == present.end()) continue;
    GiveTo(found->second, PlaceOf(found->second), facts.options, member, wanted.view);
  }
  if (FormFirstGroups(facts, wanted)) return WriteView(facts, std::move(wanted));
  move.say = std::move(wanted.say);
  return move;
}

Move ViewAgain(const Facts& facts, const ViewRecord& kept) {
  Move move{.waits = true};
  Wanted wanted{.view = kept};
  const RollCall roll(kept, facts.records.present, facts.board.reports());
  for (int i = 0; i < kept.members_size(); ++i) {
    const auto& [before, slot, report] = roll.members()[static_cast<size_t>(i)];
    if (before->lost() || report != nullptr) continue;
    if (!facts.absences.IsOverdue(slot, facts.now)) return move;
    wanted.view.mutable_members(i)->set_lost(true);
    DescribeChange(facts, *before, wanted.view.members(i), wanted);
  }
  return WriteView(facts, std::move(wanted));
}

Move ViewRule(const Facts& facts) {
  Move move;
  if (std::optional<Wanted> wanted = NextView(facts)) {
    move = WriteView(facts, *std::move(wanted));
  } else if (std::optional<Formation> lower = LowerFormation(facts)) {
    move.say = std::move(lower->say);
    move.write = {.view = std::move(lower->view)};
  }
  move.wake = facts.absences.NextEnd(facts.now);
  return move;
}

}  // namespace unreft::smp
