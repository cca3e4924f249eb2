// How much memory a simulated node needs at most, in whichever world: runs that have no more of it
// find out whether what a restore keeps of another world, and what is captured after it, fit there
// together.
#pragma once

#include <cstdint>
#include <vector>

#include "smp/core/node_options.h"
#include "smp/memory/memory_plan.h"
#include "tests/sim/model.h"

namespace unreft::sim {

// As much as extras ever want: slots with room for them never grow.
inline constexpr uint64_t kExtrasBytesMost = 16 << 10;

// A node of which each rank has all its slots, and whose guards are as large as those of a group
// can be whose other nodes are like the largest; or, where a node is left out and the ranks that it
// had are on the next, those of one parity. `homes`: of each rank its node, and again from the
// first for those beyond.
uint64_t TightMemory(const smp::NodeOptions& options, const TensorModel& tensors,
                     const std::vector<uint64_t>& homes, uint64_t world_max);

}  // namespace unreft::sim
