// The simulation of several nodes over many seeds, the seeds that found bugs, and bugs planted to
// see the checkers find them.

#include "tests/sim/cluster/cluster_simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace unreft::sim {
namespace {

std::string Tail(const SimulationResult& result) {
  std::string text;
  const size_t lines = std::min<size_t>(result.tail.size(), 60);
  for (size_t i = result.tail.size() - lines; i < result.tail.size(); ++i) {
    text += result.tail[i] + "\n";
  }
  return text;
}

void ExpectPasses(const SimulationOptions& options) {
  const SimulationResult result = SimulateCluster(options);
  EXPECT_FALSE(result.failure) << "seed " << options.seed << ": " << *result.failure << "\n"
                               << Tail(result);
}

uint64_t SeedsOfThisRun() {
  const char* seeds = std::getenv("UNREFT_SIM_SEEDS");  // fewer under a sanitizer
  return seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : 20;
}

TEST(ClusterSimTest, WithoutFaultsEverySeedCommitsWhatCanBeDecoded) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ExpectPasses({.seed = seed, .faults = false, .faulty_time = std::chrono::seconds(1)});
  }
}

TEST(ClusterSimTest, SurvivesFaults) {
  uint64_t faults = 0;
  uint64_t rebuilt = 0;
  for (uint64_t seed = 1; seed <= SeedsOfThisRun(); ++seed) {
    const SimulationResult result = SimulateCluster({.seed = seed});
    ASSERT_FALSE(result.failure) << "seed " << seed << ": " << *result.failure << "\n"
                                 << Tail(result);
    faults += result.faults;
    rebuilt += result.rebuilt;
  }
  EXPECT_TRUE(rebuilt > 0 || SeedsOfThisRun() < 20);
  EXPECT_GT(faults, SeedsOfThisRun());
}

TEST(ClusterSimTest, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(SimulateCluster({.seed = 3}).hash, SimulateCluster({.seed = 3}).hash);
  EXPECT_NE(SimulateCluster({.seed = 3}).hash, SimulateCluster({.seed = 4}).hash);
}

// Seeds that found a bug. They draw other faults when the simulation changes.
TEST(ClusterSimTest, StripesBeyondTheSmallerSlabsAreProtected) {
  ExpectPasses({.seed = 1, .faults = false});
}
TEST(ClusterSimTest, ANodeWithoutRanksDropsWhatIsGivenUp) {
  ExpectPasses({.seed = 16, .faults = false});
}
TEST(ClusterSimTest, AGuardRemadeForWhatIsOverIsLetGo) { ExpectPasses({.seed = 100}); }

// Within a few seeds some checker must find the bug.
void ExpectFound(PlantedBug bug, bool faults, const std::string& by) {
  std::string found;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const SimulationResult result = SimulateCluster({.seed = seed, .faults = faults, .bug = bug});
    if (!result.failure) continue;
    found += fmt::format("seed {}: {}\n", seed, *result.failure);
    if (result.failure->find(by) != std::string::npos) return;
  }
  FAIL() << "no checker said '" << by << "'\n" << found;
}

TEST(ClusterPlantedBugTest, WrongParity) {
  ExpectFound(PlantedBug::kWrongParity, false, "is not that of the slabs");
}
TEST(ClusterPlantedBugTest, CommitsUnguarded) {
  ExpectFound(PlantedBug::kCommitsUnguarded, false, "there is no complete guard");
}
TEST(ClusterPlantedBugTest, ReportsTheUnsealed) {
  ExpectFound(PlantedBug::kReportsTheUnsealed, true, "and has not");
}

}  // namespace
}  // namespace unreft::sim
