// The shared memory that a node has promised to its ranks, part by part: what is there and what
// will be taken.
#pragma once

#include <cstdint>

#include "smp/desk/node_state.h"
#include "smp/memory/memory_plan.h"

namespace unreft::smp {

// For the ranks that have registered.
MemoryPlan PromisedMemory(const NodeState& state);

// Of the staging of restores, for the ranks that have registered.
uint64_t StagingNeeded(const NodeState& state);

}  // namespace unreft::smp
