#include "tools/cli/placement.h"

#include <algorithm>

namespace unreft::cli {
namespace {

bool AnyServed(const Cluster& cluster, absl::FunctionRef<bool(uint64_t)> is_served) {
  for (uint64_t place = 0; place < cluster.places(); ++place) {
    if (is_served(place)) return true;
  }
  return false;
}

// Its process counts, not its registration: under load a lease is lost and comes back.
bool SpareWaits(const Cluster& cluster, const std::vector<uint64_t>& taken,
                absl::FunctionRef<bool(uint64_t)> is_served) {
  for (uint64_t place = cluster.nodes; place < cluster.places(); ++place) {
    if (std::find(taken.begin(), taken.end(), place) == taken.end() && is_served(place)) {
      return true;
    }
  }
  return false;
}

// Whether some node without a daemon is one whose slot a spare would take: one that has not come
// yet keeps it.
bool AnyIsASpares(const nlohmann::json& answer, const std::vector<uint64_t>& vacant) {
  return std::any_of(vacant.begin(), vacant.end(),
                     [&](uint64_t node) { return !IsToCome(answer, node); });
}

}  // namespace

Placement FindPlacement(const Cluster& cluster, const nlohmann::json& answer,
                        absl::FunctionRef<bool(uint64_t place)> is_served) {
  Placement placement;
  for (uint64_t node = 0; node < cluster.nodes; ++node) {
    placement.places.push_back(PlaceOf(answer, node));
    if (!is_served(placement.places.back())) placement.vacant.push_back(node);
  }
  if (cluster.spares == 0) return placement;
  // Only a view says which spare took what; where nobody is, nobody will say it.
  placement.unsettled = HasView(answer) ? AnyIsASpares(answer, placement.vacant) &&
                                              SpareWaits(cluster, placement.places, is_served)
                                        : AnyServed(cluster, is_served);
  return placement;
}

}  // namespace unreft::cli
