// How often a node tells its leader what has changed, and how often the leader looks at what was
// told: so that what a version costs the leader grows with the nodes, not with their square.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/executor.h"

namespace unreft::smp {

// All nodes together tell 25,000 times a second at most, and none of them more often than 200
// times. Less often would delay commits where a few nodes train with short steps. A node that is
// alone tells itself, at once.
constexpr Duration PaceOf(uint64_t nodes) {
  if (nodes == 1) return Duration{};
  return std::max<Duration>(std::chrono::milliseconds(5), nodes * std::chrono::microseconds(40));
}

}  // namespace unreft::smp
