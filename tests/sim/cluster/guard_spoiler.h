// GuardSpoiler: the planted bug of a guard that is sealed with a parity block which is not the
// group's: it and all CRCs are right as a daemon of that bug would leave them.
#pragma once

#include <set>
#include <string>

#include "tests/sim/cluster/group_checker.h"

namespace unreft::sim {

// Does nothing unless the world's bug is kWrongParity.
class GuardSpoiler {
 public:
  GuardSpoiler(const World& world, MachinesBySlot machines)
      : world_(world), machines_(std::move(machines)) {}

  void AfterEvent();

 private:
  const World& world_;
  const MachinesBySlot machines_;
  std::set<std::string> spoiled_;  // guards, by name and generation
};

}  // namespace unreft::sim
