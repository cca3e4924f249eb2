#include "smp/job/absences.h"

#include <set>

#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

// Whose slot is held by another memory than the view names, which it does not say is lost.
std::set<NodeSlot> HeldByOthers(const meta::JobState& records, const ViewRecord& view) {
  std::set<NodeSlot> held;
  for (const ViewMember& member : view.members()) {
    const NodeSlot slot{member.slot()};
    const bool is_held = records.present.contains(slot) && !IsPresent(records, member);
    if (is_held && !member.lost()) held.insert(slot);
  }
  return held;
}

}  // namespace

void Absences::Follow(const meta::JobState& records, const ViewRecord& view, uint64_t nodes,
                      Time now) {
  const std::set<NodeSlot> held_by_others = HeldByOthers(records, view);
  for (uint64_t number = 0; number < nodes; ++number) {
    const NodeSlot slot{number};
    if (records.present.contains(slot) && !held_by_others.contains(slot)) {
      since_.erase(slot);
    } else if (!records.leaving.contains(slot)) {
      since_.try_emplace(slot, now);
    }
  }
}

bool Absences::IsOverdue(NodeSlot slot, Time now) const {
  const auto since = since_.find(slot);
  return since != since_.end() && now - since->second >= grace_;
}

std::optional<Time> Absences::NextEnd(Time now) const {
  std::optional<Time> next;
  for (const auto& [slot, since] : since_) {
    const Time end = since + grace_;
    if (end > now && (!next || end < *next)) next = end;
  }
  return next;
}

}  // namespace unreft::smp
