#include "tests/sim/tight_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layout/capture_plan.h"
#include "meta/groups.h"
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

using Ranks = std::vector<smp::RankNeeds>;

uint64_t GuardBytesOf(const smp::NodeOptions& options, const Ranks& ranks, ec::CodeShape shape) {
  std::vector<smp::SlotNeeds> slabs;
  for (const smp::RankNeeds& rank : ranks) slabs.push_back(rank.slot);
  return options.SlotsPerRank() *
         smp::GuardBytes(options.block_bytes,
                         smp::GuardNeedsFor(shape, options.block_bytes, slabs));
}

// Of every group that all nodes may form: the largest has more sources than the smallest.
std::vector<ec::CodeShape> ShapesOf(const smp::NodeOptions& options) {
  std::vector<ec::CodeShape> shapes;
  for (uint32_t k = options.data_chunks; k + options.parity_chunks <= options.nodes; ++k) {
    shapes.push_back({k, options.parity_chunks});
  }
  return shapes;
}

// Of those that one node less may form, with the fewest parities.
std::vector<ec::CodeShape> ShapesWithout(const smp::NodeOptions& options) {
  const auto left = static_cast<uint32_t>(options.nodes - 1);
  const ec::CodeShape shape = meta::ShapeFor(left, options.data_chunks, options.parity_chunks);
  std::vector<ec::CodeShape> shapes;
  for (uint32_t size = shape.n(); size <= left; ++size) shapes.push_back({size - 1, 1});
  return shapes;
}

// Of the largest node.
uint64_t NeededBy(const smp::NodeOptions& options, const std::map<uint64_t, Ranks>& nodes,
                  const std::vector<ec::CodeShape>& shapes) {
  uint64_t own = 0;
  uint64_t guards = 0;
  for (const auto& [node, ranks] : nodes) {
    const smp::MemoryPlan plan = smp::PlanMemory(options, ranks);
    own = std::max(own, plan.slot_bytes + plan.staging_bytes);
    if (options.parity_chunks == 0) continue;
    for (const ec::CodeShape shape : shapes) {
      guards = std::max(guards, GuardBytesOf(options, ranks, shape));
    }
  }
  return own + guards;
}

}  // namespace

uint64_t TightMemory(const smp::NodeOptions& options, const TensorModel& tensors,
                     const std::vector<uint64_t>& homes, uint64_t world_max) {
  uint64_t most = 0;
  for (uint64_t world = 1; world <= world_max; ++world) {
    std::map<uint64_t, Ranks> nodes;
    for (uint64_t rank = 0; rank < world; ++rank) {
      nodes[homes[rank % homes.size()]].push_back(NeedsOf(options, tensors(Rank{rank}, world)));
    }
    most = std::max(most, NeededBy(options, nodes, ShapesOf(options)));
    for (uint64_t out = 0; options.nodes > 2 && out < options.nodes; ++out) {
      std::map<uint64_t, Ranks> left = nodes;
      Ranks& next = left[(out + 1) % options.nodes];
      next.insert(next.end(), nodes[out].begin(), nodes[out].end());
      left.erase(out);
      most = std::max(most, NeededBy(options, left, ShapesWithout(options)));
    }
  }
  return most;
}

}  // namespace unreft::sim
