// GuardSpoiler: who makes complete guards bad: as failing memory does, and as a daemon would with
// the planted bug of sealing a parity block that is not the group's, all CRCs right. With another
// one it takes the seals of slots away.
// Single-threaded.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "tests/sim/cluster/group_checker.h"

namespace unreft::sim {

class GuardSpoiler {
 public:
  explicit GuardSpoiler(World& world) : world_(world) {}

  // Turns one bit of some complete guard in that memory, and says of which version; none when there
  // is none.
  std::optional<Version> FlipBit(Machine& machine, Random& random);

  // Does nothing unless the world's bug is kWrongParity or kCommitsUnsealed.
  void AfterEvent(Machine& machine);

 private:
  static void UnsealSlots(Machine& machine);

  World& world_;
  std::set<std::string> spoiled_;  // guards, by name and generation
};

}  // namespace unreft::sim
