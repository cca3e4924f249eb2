#include "smp/protect/source_health.h"

namespace unreft::smp {

SourceHealth::SourceHealth(Executor& executor, const Peers& peers, Duration avoided,
                           std::map<Rank, NodeSlot> lost)
    : executor_(executor), peers_(peers), avoided_(avoided), lost_(std::move(lost)) {
  for (const auto& [rank, slot] : lost_) losers_.insert(slot);
}

bool SourceHealth::IsBad(NodeSlot slot, Kind kind) const {
  if (peers_.PresenceOf(slot) == nullptr) return true;
  const auto failed = until_.find({slot, kind});
  return failed != until_.end() && executor_.Now() < failed->second;
}

void SourceHealth::Avoid(NodeSlot slot, Kind kind) {
  until_[{slot, kind}] = executor_.Now() + avoided_;
}

}  // namespace unreft::smp
