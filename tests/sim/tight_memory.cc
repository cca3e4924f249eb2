#include "tests/sim/tight_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layout/capture_plan.h"
#include "smp/core/registration.h"

namespace unreft::sim {
namespace {

smp::RankNeeds NeedsOf(const smp::NodeOptions& options, std::vector<TensorSpec> tensors) {
  smp::Registration registration;
  registration.table = *layout::TensorTable::Create(std::move(tensors));
  registration.plan = layout::CapturePlan::Make(registration.table, layout::CaptureMode::kSharded);
  layout::SlotManifest manifest = smp::ManifestOf(registration);
  manifest.job = options.job;
  return {.slot = {.data_bytes = registration.plan.data_bytes(),
                   .extras_bytes = options.extras_bytes_min,
                   .manifest_bytes = layout::ManifestBytesMax(std::move(manifest))},
          .state_bytes = smp::StateBytes(registration.table.specs())};
}

// In the largest group that the nodes may form: it has more sources than the smallest.
uint64_t GuardBytesOf(const smp::NodeOptions& options, const std::vector<smp::RankNeeds>& ranks) {
  std::vector<smp::SlotNeeds> slabs;
  for (const smp::RankNeeds& rank : ranks) slabs.push_back(rank.slot);
  uint64_t most = 0;
  for (uint32_t k = options.data_chunks; k + options.parity_chunks <= options.nodes; ++k) {
    const ec::CodeShape shape{k, options.parity_chunks};
    most = std::max(most, smp::GuardBytes(options.block_bytes,
                                          smp::GuardNeedsFor(shape, options.block_bytes, slabs)));
  }
  return options.SlotsPerRank() * most;
}

}  // namespace

uint64_t TightMemory(const smp::NodeOptions& options, const TensorModel& tensors,
                     const std::vector<uint64_t>& homes, uint64_t world_max) {
  uint64_t most = 0;
  for (uint64_t world = 1; world <= world_max; ++world) {
    std::map<uint64_t, std::vector<smp::RankNeeds>> nodes;
    for (uint64_t rank = 0; rank < world; ++rank) {
      nodes[homes[rank % homes.size()]].push_back(NeedsOf(options, tensors(Rank{rank}, world)));
    }
    uint64_t own = 0;
    uint64_t guards = 0;
    for (const auto& [node, ranks] : nodes) {
      const smp::MemoryPlan plan = smp::PlanMemory(options, ranks);
      own = std::max(own, plan.slot_bytes + plan.staging_bytes);
      if (options.parity_chunks > 0) guards = std::max(guards, GuardBytesOf(options, ranks));
    }
    most = std::max(most, own + guards);
  }
  return most;
}

}  // namespace unreft::sim
