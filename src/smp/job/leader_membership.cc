// How the leader decides which memory each node slot has (docs/protocol.md, rules 3 and 19).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "meta/groups.h"
#include "smp/job/cluster_records.h"
#include "smp/job/leader.h"

namespace unreft::smp {
namespace {

// How ill a spare fits into a slot's group; 0: it is like the node that was lost.
int SparePenalty(const ViewRecord& view, NodeSlot slot, const SpareRecord& spare) {
  const std::string& domain = spare.presence().failure_domain();
  int penalty = 0;
  for (const Group& group : view.groups()) {
    const auto& slots = group.slots();
    if (std::find(slots.begin(), slots.end(), slot.value) == slots.end()) continue;
    for (const unreft::Member& member : view.members()) {
      const bool is_beside = member.slot() != slot.value &&
                             std::find(slots.begin(), slots.end(), member.slot()) != slots.end();
      if (member.slot() == slot.value && member.failure_domain() != domain) ++penalty;
      if (is_beside && !domain.empty() && member.failure_domain() == domain) penalty += 2;
    }
  }
  return penalty;
}

// By the failure domains that the view names now.
std::string ExposureOf(const ViewRecord& view) {
  std::map<NodeSlot, std::string> domains;
  for (const unreft::Member& member : view.members()) {
    domains[NodeSlot{member.slot()}] = member.failure_domain();
  }
  std::vector<meta::ProtectionGroup> groups;
  uint32_t parities = 0;
  for (const Group& group : view.groups()) {
    meta::ProtectionGroup& next = groups.emplace_back();
    for (const uint64_t slot : group.slots()) next.slots.push_back(NodeSlot{slot});
    next.k = group.k();
    parities = static_cast<uint32_t>(group.slots_size()) - group.k();
  }
  return meta::DescribeExposure(groups, domains, parities);
}

std::string DescribeLoss(const ViewRecord& view, const unreft::Member& lost, Duration grace) {
  std::string group;
  for (const Group& of : view.groups()) {
    if (std::ranges::find(of.slots(), lost.slot()) == of.slots().end()) continue;
    group = fmt::format(" Its group (nodes {}) stands one loss less.", fmt::join(of.slots(), ", "));
  }
  return fmt::format(
      "node {} is lost: its daemon has been absent for more than {} ms.{} Nothing is committed "
      "until a daemon takes its slot: start it again, or one with --spare",
      lost.slot(), grace / std::chrono::milliseconds(1), group);
}

std::string DescribeView(const ViewRecord& view) {
  std::vector<uint64_t> lost;
  for (const unreft::Member& member : view.members()) {
    if (member.lost()) lost.push_back(member.slot());
  }
  return fmt::format("view {}: {} nodes, {}", view.number(), view.members_size(),
                     lost.empty() ? "none is lost"
                                  : fmt::format("of which node {} is lost", fmt::join(lost, ", ")));
}

std::string WhichMemory(const unreft::Member& now, const std::optional<meta::Takeover>& takeover) {
  if (!takeover || takeover->slot.value != now.slot()) return "new memory";
  if (!takeover->returns) return fmt::format("new memory, that of spare {}", takeover->place);
  return fmt::format(
      "its earlier memory again, that of place {}: its ranks live, and none is with the one that "
      "took the slot",
      takeover->place);
}

}  // namespace

bool Leader::IsPresent(NodeSlot slot) const { return store_.state().present.contains(slot); }

// Members by what is present, the others as they were; lost once their grace has run out.
ViewRecord Leader::WantedView() {
  const meta::JobState& state = store_.state();
  ViewRecord wanted = state.view.value;
  for (unreft::Member& member : *wanted.mutable_members()) {
    const NodeSlot slot{member.slot()};
    const auto present = state.present.find(slot);
    if (present != state.present.end()) {
      member.set_incarnation(present->second.incarnation());
      member.set_place(PlaceOf(present->second));
      member.set_lost(false);
      executor_.Cancel(std::exchange(absences_[slot], TimerId::kNone));
      absences_.erase(slot);
      overdue_.erase(slot);
      continue;
    }
    if (overdue_.contains(slot)) {
      member.set_lost(true);
    } else if (!member.lost()) {
      BeginGrace(slot);
    }
  }
  return wanted;
}

// Of one that has said good-bye it begins when its lease ends: as if it had been killed.
void Leader::BeginGrace(NodeSlot slot) {
  if (absences_.contains(slot) || store_.state().leaving.contains(slot)) return;
  absences_[slot] = executor_.After(options_.lost_grace, [this, slot] {
    absences_.erase(slot);
    overdue_.insert(slot);
    RunRules();
  });
}

// In a new job whoever is late is waited for. In one whose store has lost the view, slots whose
// nodes do not come back are lost from the start, if spares wait for all of them.
std::optional<std::vector<NodeSlot>> Leader::LostBeforeFirstView() {
  const meta::JobState& state = store_.state();
  const bool is_new = std::ranges::all_of(board_.reports(), [](const auto& report) {
    return report.second.chain().empty() && report.second.view() == 0;
  });
  std::vector<NodeSlot> lost;
  bool all_overdue = true;
  for (uint64_t number = 0; number < options_.nodes; ++number) {
    const NodeSlot slot{number};
    if (IsPresent(slot)) {
      executor_.Cancel(std::exchange(absences_[slot], TimerId::kNone));
      absences_.erase(slot);
      overdue_.erase(slot);
      continue;
    }
    if (is_new) return std::nullopt;
    lost.push_back(slot);
    if (overdue_.contains(slot)) continue;
    all_overdue = false;
    BeginGrace(slot);
  }
  const auto waits = [](const auto& spare) { return spare.second.value.lease() != 0; };
  const auto spares = static_cast<size_t>(std::ranges::count_if(state.spares, waits));
  if (!all_overdue || spares < lost.size()) return std::nullopt;
  return lost;
}

// Of the spares that wait, one for the first lost slot: of the lost node's failure domain, if there
// is one, else of one that none of its group is in.
std::optional<meta::Takeover> Leader::AssignSpare(ViewRecord& wanted) {
  auto spares = store_.state().spares;
  std::erase_if(spares, [](const auto& spare) { return spare.second.value.lease() == 0; });
  if (spares.empty()) return std::nullopt;
  for (unreft::Member& member : *wanted.mutable_members()) {
    const NodeSlot slot{member.slot()};
    if (!member.lost() || IsPresent(slot)) continue;
    const auto best =
        std::min_element(spares.begin(), spares.end(), [&](const auto& a, const auto& b) {
          return SparePenalty(wanted, slot, a.second.value) <
                 SparePenalty(wanted, slot, b.second.value);
        });
    const PresenceRecord& presence = best->second.value.presence();
    member.set_incarnation(presence.incarnation());
    member.set_failure_domain(presence.failure_domain());
    member.set_place(best->first);
    member.set_lost(false);
    overdue_.erase(slot);
    wanted.set_exposure(ExposureOf(wanted));
    return meta::Takeover{best->first, slot};
  }
  return std::nullopt;
}

// A memory that was replaced while its daemon was away has its slot again if its ranks live, and
// none is with the one that took it: nothing can be committed without them, and they ask nowhere
// else.
std::optional<meta::Takeover> Leader::GiveSlotBack(ViewRecord& wanted) {
  const meta::JobState& state = store_.state();
  if (state.timeline.value.closing()) return std::nullopt;
  for (const auto& [place, waiting] : state.waiting) {
    const PresenceRecord& presence = waiting.value.presence();
    if (waiting.value.lease() == 0 || waiting.value.ranks() == 0) continue;
    for (unreft::Member& member : *wanted.mutable_members()) {
      if (member.slot() != presence.slot() || member.lost()) continue;
      if (member.incarnation() == presence.incarnation()) continue;
      const NodeReport* const report = ReportOf(member);
      if (report == nullptr || report->ranks() > 0 || report->asking_size() > 0) continue;
      member.set_incarnation(presence.incarnation());
      member.set_failure_domain(presence.failure_domain());
      member.set_place(place);
      wanted.set_exposure(ExposureOf(wanted));
      return meta::Takeover{.place = place, .slot = NodeSlot{member.slot()}, .returns = true};
    }
  }
  return std::nullopt;
}

// The groups that stored versions are encoded in, which nodes know where the store does not; of
// those that contradict each other the newest version's, and first of all the committed one's.
std::vector<recovery::CodedGroup> Leader::GroupsOfStored() const {
  // Who has not heard of the newest decision yet may know a commit from which it steps back.
  std::pair<uint64_t, Version> committed;
  recovery::Holdings holdings;
  for (const auto& [slot, report] : board_.reports()) {
    if (!IsPresent(slot)) continue;
    const Version known{Timeline{report.committed_timeline()}, Step{report.committed_step()}};
    committed = std::max(committed, {report.newest_timeline(), known});
    for (const VersionHolding& version : report.versions()) {
      holdings[VersionOf(version)][slot] = HoldingOf(version);
    }
  }
  std::vector<recovery::CodedGroup> groups;
  for (const auto& [version, held] : holdings) groups = recovery::EncodedGroups(held, groups);
  return recovery::EncodedGroups(holdings[committed.second], groups);
}

// False as long as it cannot be said.
bool Leader::FormFirstGroups(ViewRecord& wanted) const {
  std::vector<meta::GroupCandidate> nodes;
  for (const unreft::Member& member : wanted.members()) {
    if (!member.lost() && ReportOf(member) == nullptr) return false;  // to come
    nodes.push_back({NodeSlot{member.slot()}, member.failure_domain()});
  }
  std::vector<meta::ProtectionGroup> stored;
  for (recovery::CodedGroup& group : GroupsOfStored()) {
    stored.push_back({std::move(group.slots), group.k});
  }
  const absl::StatusOr<meta::Grouping> grouping =
      meta::FormGroups(nodes, options_.data_chunks, options_.parity_chunks, stored);
  if (!grouping.ok()) {
    log_.Error("no protection groups: {}", grouping.status().message());
    return false;
  }
  for (const meta::ProtectionGroup& group : grouping->groups) {
    Group& next = *wanted.add_groups();
    for (const NodeSlot slot : group.slots) next.add_slots(slot.value);
    next.set_k(group.k);
  }
  for (const meta::ProtectionGroup& group : stored) {
    if (std::ranges::find(grouping->groups, group) != grouping->groups.end()) continue;
    log_.Warn(
        "protection groups are formed anew: those of stored versions are not such as are "
        "asked for now, RS({},{}) of {} nodes",
        options_.data_chunks, options_.parity_chunks, nodes.size());
    break;
  }
  wanted.set_exposure(grouping->exposure);
  if (!grouping->exposure.empty()) log_.Warn("protection: {}", grouping->exposure);
  return true;
}

bool Leader::KeepView() {
  const meta::JobState& state = store_.state();
  ViewRecord wanted;
  std::optional<meta::Takeover> takeover;
  std::vector<NodeSlot> lost;
  if (state.view.exists()) {
    wanted = WantedView();
    takeover = AssignSpare(wanted);
    if (!takeover) takeover = GiveSlotBack(wanted);
    if (wanted.SerializeAsString() == state.view.value.SerializeAsString()) return false;
    for (int i = 0; i < wanted.members_size(); ++i) {
      const unreft::Member& now = wanted.members(i);
      const unreft::Member& before = state.view.value.members(i);
      if (now.lost() && !before.lost()) {
        Announce(LogLevel::kWarn, DescribeLoss(wanted, now, options_.lost_grace));
        lost.push_back(NodeSlot{now.slot()});
      }
      if (!now.lost() && before.lost() && now.incarnation() == before.incarnation()) {
        Announce(LogLevel::kInfo,
                 fmt::format("node {} is back, with all that it held", now.slot()));
      }
      if (!now.lost() && now.incarnation() != before.incarnation()) {
        Announce(LogLevel::kInfo,
                 fmt::format("node {} has {}", now.slot(), WhichMemory(now, takeover)));
      }
    }
  } else {
    std::optional<std::vector<NodeSlot>> missing = LostBeforeFirstView();
    if (!missing) return false;
    lost = *std::move(missing);
    for (const auto& [slot, presence] : state.present) {
      unreft::Member& member = *wanted.add_members();
      member.set_slot(slot.value);
      member.set_incarnation(presence.incarnation());
      member.set_failure_domain(presence.failure_domain());
      member.set_place(PlaceOf(presence));
    }
    for (const NodeSlot slot : lost) {
      Announce(LogLevel::kWarn, fmt::format("node {} is lost: the meta store has lost the view, "
                                            "and it has not come back",
                                            slot));
      unreft::Member& member = *wanted.add_members();
      member.set_slot(slot.value);
      member.set_lost(true);
    }
    if (!FormFirstGroups(wanted)) return false;
  }
  uint64_t newest = state.view.value.number();
  for (const auto& [slot, report] : board_.reports()) newest = std::max(newest, report.view());
  wanted.set_number(newest + 1);
  Announce(LogLevel::kInfo, DescribeView(wanted));
  return Write({.view = std::move(wanted), .takeover = takeover, .absent = std::move(lost)});
}

}  // namespace unreft::smp
