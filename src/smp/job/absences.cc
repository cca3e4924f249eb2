#include "smp/job/absences.h"

namespace unreft::smp {

void Absences::Follow(const meta::JobState& records, uint64_t nodes, Time now) {
  std::erase_if(since_,
                [&](const auto& absence) { return records.present.contains(absence.first); });
  auto present = records.present.begin();
  for (uint64_t number = 0; number < nodes; ++number) {
    const NodeSlot slot{number};
    while (present != records.present.end() && present->first < slot) ++present;
    const bool is_present = present != records.present.end() && present->first == slot;
    if (!is_present && !records.leaving.contains(slot)) since_.try_emplace(slot, now);
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
