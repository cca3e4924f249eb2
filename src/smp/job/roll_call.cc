#include "smp/job/roll_call.h"

#include <algorithm>

#include "smp/job/cluster_records.h"
#include "smp/job/formation.h"

namespace unreft::smp {

// A report of an earlier process of the same memory says nothing about this one.
const NodeReport* ReportOf(const ViewMember& member, const Presences& present,
                           const Reports& reports) {
  const auto report = reports.find(NodeSlot{member.slot()});
  const auto presence = present.find(NodeSlot{member.slot()});
  if (report == reports.end() || presence == present.end()) return nullptr;
  const bool counts = report->second.incarnation() == member.incarnation() &&
                      presence->second.incarnation() == member.incarnation() &&
                      presence->second.session() == report->second.session();
  return counts ? &report->second : nullptr;
}

RollCall::RollCall(const ViewRecord& view, const Presences& present, const Reports& reports) {
  members_.reserve(static_cast<size_t>(view.members_size()));
  told_.reserve(members_.capacity());
  for (const ViewMember& member : view.members()) {
    const NodeSlot slot{member.slot()};
    const NodeReport* const report = ReportOf(member, present, reports);
    members_.push_back({&member, slot, report});
    if (member.lost()) continue;
    if (report == nullptr) {
      ++silent_;
      silent_in_ += IsIn(view, slot);
    } else {
      told_.push_back({slot, report});
    }
  }
}

const VersionHolding* FindHolding(const NodeReport& report, Version version) {
  const auto it = std::ranges::find_if(report.versions(), [&](const VersionHolding& holding) {
    return VersionOf(holding) == version;
  });
  return it == report.versions().end() ? nullptr : &*it;
}

std::map<NodeSlot, recovery::NodeHolding> HeldOf(const RollCall& roll, Version version) {
  std::map<NodeSlot, recovery::NodeHolding> held;
  for (const auto& [slot, report] : roll.told()) {
    const VersionHolding* holding = FindHolding(*report, version);
    if (holding != nullptr) held[slot] = HoldingOf(*holding);
  }
  return held;
}

recovery::Holdings HoldingsOf(const RollCall& roll) {
  recovery::Holdings holdings;
  for (const auto& [slot, report] : roll.told()) {
    for (const VersionHolding& holding : report->versions()) {
      holdings[VersionOf(holding)][slot] = HoldingOf(holding);
    }
  }
  return holdings;
}

recovery::Memories MemoriesLeft(const RollCall& roll) {
  recovery::Memories memories;
  for (const RollCall::Entry& entry : roll.members()) {
    if (!entry.member->lost()) memories[entry.slot] = entry.member->incarnation();
  }
  return memories;
}

}  // namespace unreft::smp
