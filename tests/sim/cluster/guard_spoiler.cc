#include "tests/sim/cluster/guard_spoiler.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/format.h"
#include "base/guard_header.h"
#include "base/slot_header.h"

namespace unreft::sim {

std::optional<Version> GuardSpoiler::FlipBit(Machine& machine, Random& random) {
  FakeSegmentStore store(*machine.memory);
  struct Complete {
    std::string name;
    GuardGeometry geometry;
    GuardGrant grant;
    uint64_t record_bytes;
  };
  std::vector<Complete> complete;
  for (const std::string& name : machine.memory->Names()) {
    if (!name.starts_with(machine.prefix() + "guard")) continue;
    const absl::StatusOr<std::unique_ptr<Segment>> segment = store.Open(name, Access::kReadOnly);
    if (!segment.ok()) continue;
    if (*machine.memory->ReservedBytes(name) < (*segment)->bytes().size()) continue;
    const absl::StatusOr<GuardView> view = GuardView::Check((*segment)->bytes());
    if (!view.ok() || view->state() != GuardState::kComplete) continue;
    const absl::StatusOr<GuardGrant> grant = view->CheckedGrant();
    const absl::StatusOr<GuardSeal> seal = view->CheckedSeal();
    if (!grant.ok() || !seal.ok()) continue;
    complete.push_back({name, view->geometry(), *grant, seal->record_bytes});
  }
  if (complete.empty()) return std::nullopt;
  const Complete& guard = complete[random.Below(complete.size())];
  const GuardGeometry& g = guard.geometry;
  const uint64_t parity_bytes = guard.grant.positions * g.block_bytes;
  const std::pair<uint64_t, uint64_t> regions[] = {
      {0, sizeof(GuardGeometry)},
      {sizeof(GuardGeometry), sizeof(GuardGrant)},
      {sizeof(GuardGeometry) + sizeof(GuardGrant), sizeof(GuardSeal) + sizeof(SharedWord)},
      {g.record_offset, guard.record_bytes},
      {g.parity_crc_offset, g.input_crc_offset - g.parity_crc_offset},
      {g.input_crc_offset, g.parity_offset - g.input_crc_offset},
      {g.parity_offset, parity_bytes},
      {g.parity_offset, parity_bytes}};
  const auto [begin, length] = regions[random.Below(std::size(regions))];
  if (length == 0) return std::nullopt;
  const uint64_t offset = begin + random.Below(length);
  machine.memory->FlipBit(guard.name, offset, static_cast<int>(random.Below(8)));
  const Version version{Timeline{guard.grant.timeline}, Step{guard.grant.step}};
  world_.trace.Add("flipped a bit of {}, version {}, at {}", guard.name, version, offset);
  return version;
}

void GuardSpoiler::AfterEvent(Machine& machine) {
  if (world_.bug == PlantedBug::kCommitsUnsealed) UnsealSlots(machine);
  if (world_.bug != PlantedBug::kWrongParity || machine.slot != NodeSlot{1}) return;
  FakeSegmentStore store(*machine.memory);
  for (const std::string& name : machine.memory->Names()) {
    if (!name.starts_with(machine.prefix() + "guard")) continue;
    const absl::StatusOr<std::unique_ptr<Segment>> segment = store.Open(name, Access::kReadWrite);
    if (!segment.ok()) continue;
    if (*machine.memory->ReservedBytes(name) < (*segment)->bytes().size()) continue;
    absl::StatusOr<GuardView> view = GuardView::Check((*segment)->bytes());
    if (!view.ok() || view->state() != GuardState::kComplete) continue;
    const GuardGrant grant = *view->CheckedGrant();
    if (grant.positions == 0) continue;
    if (!spoiled_.insert(fmt::format("{} {}", name, grant.generation)).second) continue;
    view->block(0, 0)[7] ^= std::byte{1};
    view->parity_crcs(0, grant.positions)[0] = Crc32c(view->block(0, 0));
    GuardSeal& seal = view->header().seal;
    seal.parity_crc_table_crc = Crc32c(view->parity_crc_table());
    SetBodyCrc(seal);
  }
}

void GuardSpoiler::UnsealSlots(Machine& machine) {
  FakeSegmentStore store(*machine.memory);
  for (const std::string& name : machine.memory->Names()) {
    if (!name.starts_with(machine.prefix() + "slot")) continue;
    if (*machine.memory->ReservedBytes(name) < kSegmentPage) continue;
    const absl::StatusOr<std::unique_ptr<Segment>> segment = store.Open(name, Access::kReadWrite);
    if (!segment.ok()) continue;
    absl::StatusOr<SlotView> view = SlotView::Check((*segment)->bytes());
    if (!view.ok() || view->state().state != SlotState::kSealed) continue;
    view->set_state(view->state().generation, SlotState::kCapturing);
  }
}

}  // namespace unreft::sim
