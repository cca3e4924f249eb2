#include "smp/job/formation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/format.h"
#include "meta/groups.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"
#include "smp/job/resize.h"

namespace unreft::smp {
namespace {

std::set<NodeSlot> GroupedIn(const ViewRecord& view) {
  std::set<NodeSlot> slots;
  for (const Group& group : view.groups()) {
    for (const uint64_t slot : group.slots()) slots.insert(NodeSlot{slot});
  }
  return slots;
}

uint32_t ParitiesOf(const ViewRecord& view) {
  if (view.groups().empty()) return 0;
  const Group& group = view.groups(0);
  return static_cast<uint32_t>(group.slots_size()) - group.k();
}

// The nodes from which the ranks of the round that is under way have asked; none where some leader
// of an earlier release has begun it.
std::optional<std::set<NodeSlot>> AskedFrom(const TimelineRecord& timeline) {
  std::set<NodeSlot> nodes;
  for (const AskingRank& asking : timeline.asked()) {
    if (!asking.has_slot()) return std::nullopt;
    nodes.insert(NodeSlot{asking.slot()});
  }
  return nodes;
}

std::string NamesOf(const std::set<NodeSlot>& slots) {
  return fmt::format("{}", fmt::join(slots, ", "));
}

std::string DescribeFormation(const ViewRecord& view, const std::set<NodeSlot>& left_out,
                              const std::set<NodeSlot>& ordered_out) {
  std::vector<std::string> groups;
  for (const Group& group : view.groups()) {
    groups.push_back(fmt::format("nodes {} as RS({},{})", fmt::join(group.slots(), ", "), group.k(),
                                 group.slots_size() - static_cast<int>(group.k())));
  }
  std::string text =
      fmt::format("the protection groups are formed anew: {}", fmt::join(groups, "; "));
  if (left_out.empty() && ordered_out.empty()) return text + "; all nodes are in again";
  if (!left_out.empty()) {
    text +=
        fmt::format("; node {} is left out: what comes back of it is let in by the next restart",
                    NamesOf(left_out));
  }
  if (!ordered_out.empty()) {
    text +=
        fmt::format("; node {} is left out by the order of 'unreft resize'", NamesOf(ordered_out));
  }
  return text;
}

}  // namespace

bool IsIn(const ViewRecord& view, NodeSlot slot) {
  return std::ranges::any_of(view.groups(), [&](const Group& group) {
    return std::ranges::find(group.slots(), slot.value) != group.slots().end();
  });
}

bool IsLeftOut(const ViewRecord& view, NodeSlot slot) {
  return view.groups_size() > 0 && !IsIn(view, slot);
}

bool HasNotCome(const ViewMember& member) { return member.lost() && member.incarnation().empty(); }

bool HasNoParities(const ViewRecord& view) { return ParitiesOf(view) == 0; }

bool AreAllIn(const ViewRecord& view) {
  int grouped = 0;
  for (const Group& group : view.groups()) grouped += group.slots_size();
  return grouped >= view.members_size();
}

absl::Status FormGroups(const std::vector<NodeSlot>& of, const NodeOptions& options,
                        ViewRecord& view) {
  std::vector<meta::GroupCandidate> nodes;
  for (const ViewMember& member : view.members()) {
    const NodeSlot slot{member.slot()};
    if (std::ranges::find(of, slot) == of.end()) continue;
    nodes.push_back({slot, member.failure_domain()});
  }
  // Fewer may be in than the groups that were asked for need, where others are lost or to come.
  const bool are_all = nodes.size() == static_cast<size_t>(view.members_size());
  const ec::CodeShape asked{options.data_chunks, options.parity_chunks};
  const ec::CodeShape shape = are_all ? asked : meta::ShapeFor(nodes.size(), asked.k, asked.m);
  const absl::StatusOr<meta::Grouping> grouping =
      meta::FormGroups(std::move(nodes), shape.k, shape.m);
  if (!grouping.ok()) return grouping.status();
  SetGroups(grouping->groups, *view.mutable_groups());
  view.set_exposure(ExposureOf(view, options));
  return absl::OkStatus();
}

std::string ExposureOf(const ViewRecord& view, const NodeOptions& options) {
  std::map<NodeSlot, std::string> domains;
  for (const ViewMember& member : view.members()) {
    domains[NodeSlot{member.slot()}] = member.failure_domain();
  }
  const uint32_t parities = ParitiesOf(view);
  std::string text = meta::DescribeExposure(GroupsOf(view.groups()), domains, parities);
  if (parities >= options.parity_chunks) return text;
  if (!text.empty()) text += "; ";
  const size_t left = GroupedIn(view).size();
  const ec::CodeShape most = meta::ShapeFor(left, options.data_chunks, options.parity_chunks);
  return text + fmt::format(
                    "{} of {} nodes {} left, in groups that stand the loss of {}: {} was asked "
                    "for{}",
                    left, view.members_size(), left == 1 ? "is" : "are", parities,
                    options.parity_chunks,
                    parities < most.m ? ", and memory is short for more" : "");
}

uint64_t NextViewNumber(const Facts& facts, const ViewRecord& view) {
  uint64_t newest = std::max(facts.records.view.value.number(), view.number());
  for (const auto& [slot, report] : facts.board.reports()) newest = std::max(newest, report.view());
  return newest + 1;
}

std::optional<Formation> NextFormation(const Facts& facts) {
  const ViewRecord& view = facts.records.view.value;
  const auto asked_from = AskedFrom(facts.records.timeline.value);
  if (!asked_from) return std::nullopt;
  std::set<NodeSlot> in;
  std::set<NodeSlot> left_out;
  for (const ViewMember& member : view.members()) {
    const NodeSlot slot{member.slot()};
    const bool is_in = !member.lost() || asked_from->contains(slot);
    (is_in ? in : left_out).insert(slot);
  }
  const std::set<NodeSlot> ordered_out =
      LeftOutByOrder(facts.records.timeline.value, in, *asked_from);
  for (const NodeSlot slot : ordered_out) in.erase(slot);
  if (in == GroupedIn(view)) return std::nullopt;
  const bool do_all_know = std::ranges::all_of(
      facts.roll.told(), [](const auto& told) { return told.report->any_groups(); });
  if (!do_all_know) return std::nullopt;
  Formation formation{.view = view};
  if (!FormGroups({in.begin(), in.end()}, facts.options, formation.view).ok()) return std::nullopt;
  formation.view.set_number(NextViewNumber(facts, view));
  const std::string& exposure = formation.view.exposure();
  formation.say.push_back(
      {LogLevel::kWarn, DescribeFormation(formation.view, left_out, ordered_out)});
  if (!exposure.empty()) {
    formation.say.push_back({LogLevel::kWarn, fmt::format("protection: {}", exposure)});
  }
  return formation;
}

std::optional<Formation> LowerFormation(const Facts& facts) {
  const ViewRecord& view = facts.records.view.value;
  const TimelineRecord& timeline = facts.records.timeline.value;
  const uint32_t parities = ParitiesOf(view);
  const bool has_committed =
      VersionOf(facts.records.commit.value).timeline == NewestTimeline(timeline);
  if (timeline.closing() || parities < 2 || has_committed || AreAllIn(view)) return std::nullopt;
  const auto& told = facts.roll.told();
  const auto lacking = std::ranges::find_if(told, [&](const RollCall::Told& of) {
    return of.report->lacks_memory() && of.report->view() == view.number() && IsIn(view, of.slot);
  });
  if (lacking == told.end()) return std::nullopt;
  Formation formation{.view = view};
  for (Group& group : *formation.view.mutable_groups()) group.set_k(group.k() + 1);
  formation.view.set_exposure(ExposureOf(formation.view, facts.options));
  formation.view.set_number(NextViewNumber(facts, view));
  formation.say.push_back(
      {LogLevel::kWarn,
       fmt::format("node {} has too little memory for {} parities in its protection group: it is "
                   "formed with {}; {}",
                   lacking->slot, parities, parities - 1, formation.view.exposure())});
  return formation;
}

}  // namespace unreft::smp
