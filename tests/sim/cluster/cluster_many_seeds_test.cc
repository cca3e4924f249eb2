// The simulation of clusters over many seeds, which must meet everything that may happen often
// enough to mean something.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/sim/cluster/cluster_faults.h"
#include "tests/sim/cluster/cluster_simulation.h"
#include "tests/sim/many_seeds.h"

namespace unreft::sim {
namespace {

// Fewer under a sanitizer.
uint64_t SeedsOfThisRun() {
  const char* seeds = std::getenv("UNREFT_SIM_SEEDS");
  return seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : 20;
}

// The meta store's own losses are left to `make sim`: one seed of many thousands finds something
// yet. All cores share one run, so that what is rare is counted over all its seeds.
TEST(ManySeedsTest, SurviveFaults) {
  const uint64_t first = FirstSeed(1);
  const uint64_t seeds = SeedsOfThisRun();
  fmt::print("unreft_sim --cluster --keep-store --first-seed {} --seeds {}\n", first, seeds);
  const auto fail = [](uint64_t seed, const SimulationResult& result) {
    fmt::print("unreft_sim --cluster --keep-store --seed {}: {}\n{}\n", seed, *result.failure,
               TailOf(result, 60));
    return false;
  };
  const uint64_t jobs = std::max(1u, std::thread::hardware_concurrency());
  SeedTotals totals =
      RunSeedsInProcesses(SimulateCluster, {.store_losses = false}, {first, seeds}, jobs, fail);
  fmt::print("{}\n", Describe(totals));
  ASSERT_EQ(totals.failed, 0u);
  ASSERT_EQ(totals.seeds, seeds);
  if (seeds < 500) return;
  // Much less than they have on average, but nothing is left out.
  const auto at_least = [&totals](const std::string& what, uint64_t some) {
    EXPECT_GE(totals.counts[what], some) << what;
  };
  for (const ClusterFaults::Kind& kind : ClusterFaults::AllKinds()) {
    if (kind.loses_store) continue;
    at_least(fmt::format("fault: {}", kind.name), kind.one_in < 16 ? seeds / 50 : seeds / 250);
  }
  at_least("faults", 10 * seeds);
  at_least("commits", 8 * seeds);
  at_least("decisions", 2 * seeds);
  at_least("restores", 10 * seeds);
  at_least("nodes destroyed", seeds / 4);
  at_least("slabs decoded", seeds / 5);
  at_least("bits flipped in slots", seeds / 5);
  at_least("bits flipped in guards", seeds / 5);
  at_least("slabs decoded that had rotted", seeds / 125);
  at_least("reshapes", seeds / 5);
  at_least("replicas found to differ", seeds / 250);
  at_least("old memories back", seeds / 125);
  at_least("decided versions guarded anew", seeds / 250);
  at_least("losses made good before a commit", seeds / 25);
  at_least("slots taken by spares", seeds / 250);
  at_least("versions pinned", seeds / 10);
  at_least("nodes that came later", seeds / 10);
  at_least("daemons with other options refused", seeds / 25);
  at_least("second daemons refused", seeds / 50);
  at_least("attempts that ask for an earlier step", seeds / 250);
  at_least("fresh starts ordered", seeds / 250);
  at_least("resizes ordered", seeds / 20);
  at_least("durable copies", seeds / 50);
  at_least("times that all memory was lost", seeds / 100);
  at_least("restored out of durable copies", seeds / 100);
  at_least("hosts taken away by an order", seeds / 250);
  at_least("orders of a fresh start refused", seeds / 250);
  // Nothing says that commits stand still unless they are looked for.
  at_least("times that all were there", 10 * seeds);
  at_least("commits after all were there", 10 * seeds);
  at_least("ranks told of a standstill", seeds / 10);
}

}  // namespace
}  // namespace unreft::sim
