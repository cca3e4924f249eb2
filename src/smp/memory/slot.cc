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

}  // namespace unreft::smp
