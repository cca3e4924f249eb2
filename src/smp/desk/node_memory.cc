#include "smp/desk/node_memory.h"

#include <vector>

namespace unreft::smp {

MemoryPlan PromisedMemory(const NodeState& state) {
  MemoryPlan plan;
  plan.slots = state.slots->All().size();
  plan.slot_bytes = state.memory->use(SegmentKind::kSlot).bytes;
  const GuardMemory guards = state.slots->guards();
  plan.guards = guards.guards;
  plan.guard_bytes = guards.bytes + guards.lacking_bytes;
  const StagingMemory staging = state.slots->staging();
  plan.staging_bytes = staging.bytes + staging.lacking_bytes;
  uint64_t ranks = 0;
  for (const auto& [rank, session] : state.sessions) ranks += session->registration != nullptr;
  plan.control_bytes = ControlBytes(state.options.nodes, ranks);
  return plan;
}

uint64_t StagingNeeded(const NodeState& state) {
  std::vector<uint64_t> state_bytes;
  for (const auto& [rank, session] : state.sessions) {
    if (!session->registration) continue;
    state_bytes.push_back(StateBytes(session->registration->table.specs()));
  }
  return StagingBytes(state.options, state_bytes);
}

}  // namespace unreft::smp
