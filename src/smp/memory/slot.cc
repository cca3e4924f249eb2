#include "smp/memory/slot.h"

namespace unreft::smp {

std::string_view SlotPhaseName(SlotPhase phase) {
  switch (phase) {
    case SlotPhase::kPopulating:
      return "populating";
    case SlotPhase::kFree:
      return "free";
    case SlotPhase::kGranted:
      return "granted";
    case SlotPhase::kCapturing:
      return "capturing";
    case SlotPhase::kRebuilding:
      return "rebuilding";
    case SlotPhase::kSealed:
      return "sealed";
    case SlotPhase::kDraining:
      return "draining";
    case SlotPhase::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

void Slot::SealRebuilt(SlotSeal seal) {
  seal.generation = generation.value;
  seal.timeline = version.timeline.value;
  seal.step = version.step.value;
  SetBodyCrc(seal);
  view->header().seal = seal;
  view->set_state(generation, SlotState::kSealed);
  phase = SlotPhase::kSealed;
}

}  // namespace unreft::smp
