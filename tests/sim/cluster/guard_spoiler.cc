#include "tests/sim/cluster/guard_spoiler.h"

#include <fmt/format.h>

#include <memory>

#include "base/crc32c.h"
#include "base/guard_header.h"
#include "base/slot_header.h"

namespace unreft::sim {

void GuardSpoiler::AfterEvent() {
  if (world_.bug != PlantedBug::kWrongParity) return;
  Machine& machine = *machines_.at(NodeSlot{1});
  FakeSegmentStore store(*machine.memory);
  for (const std::string& name : machine.memory->Names()) {
    if (!name.starts_with(machine.prefix() + "guard")) continue;
    const absl::StatusOr<std::unique_ptr<Segment>> segment = store.Open(name, Access::kReadWrite);
    if (!segment.ok()) continue;
    if (*machine.memory->ReservedBytes(name) < (*segment)->bytes().size()) continue;
    absl::StatusOr<GuardView> view = GuardView::Check((*segment)->bytes());
    if (!view.ok() || view->state() != GuardState::kComplete) continue;
    const GuardClaim claim = *view->CheckedClaim();
    if (claim.positions == 0) continue;
    if (!spoiled_.insert(fmt::format("{} {}", name, claim.generation)).second) continue;
    view->block(0, 0)[7] ^= std::byte{1};
    view->parity_crcs(0, claim.positions)[0] = Crc32c(view->block(0, 0));
    GuardSeal& seal = view->header().seal;
    seal.parity_crc_table_crc = Crc32c(view->parity_crc_table());
    SetBodyCrc(seal);
  }
}

}  // namespace unreft::sim
