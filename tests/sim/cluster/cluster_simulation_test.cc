// The simulation of clusters over many seeds, over seeds that found bugs, and with bugs
// planted to see the checkers find them.

#include "tests/sim/cluster/cluster_simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/sim/cluster/cluster_faults.h"
#include "tests/sim/many_seeds.h"

namespace unreft::sim {
namespace {

void ExpectPasses(const SimulationOptions& options) {
  const SimulationResult result = SimulateCluster(options);
  EXPECT_FALSE(result.failure) << "seed " << options.seed << ": " << *result.failure << "\n"
                               << TailOf(result, 60);
}

// Of each shard; fewer under a sanitizer.
uint64_t SeedsOfAShard() {
  const char* seeds = std::getenv("UNREFT_SIM_SEEDS");
  return seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : 20;
}

TEST(ClusterSimTest, WithoutFaultsEverySeedCommitsWhatCanBeDecoded) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    ExpectPasses({.seed = seed, .faults = false, .faulty_time = std::chrono::seconds(1)});
  }
}

// The meta store's own losses are left to `make sim`: one seed of many thousands finds something
// yet. Eight shards, so that all cores have some and each ends in time.
class ManySeedsTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Shard, ManySeedsTest, testing::Range(0, 8));

TEST_P(ManySeedsTest, SurviveFaults) {
  const uint64_t first = FirstSeed(1 + 1000 * static_cast<uint64_t>(GetParam()));
  const uint64_t seeds = SeedsOfAShard();
  fmt::print("unreft_sim --cluster --keep-store --first-seed {} --seeds {}\n", first, seeds);
  const auto fail = [](uint64_t seed, const SimulationResult& result) {
    ADD_FAILURE() << "unreft_sim --cluster --keep-store --seed " << seed << ": " << *result.failure
                  << "\n"
                  << TailOf(result, 60);
    return false;
  };
  SeedTotals totals = RunSeeds(SimulateCluster, {.store_losses = false}, {first, seeds}, fail);
  fmt::print("{}\n", Describe(totals));
  if (totals.failed > 0 || seeds < 100) return;
  // Much less than they have on average, but nothing is left out.
  for (const ClusterFaults::Kind& kind : ClusterFaults::AllKinds()) {
    if (kind.loses_store) continue;
    EXPECT_GE(totals.counts[fmt::format("fault: {}", kind.name)], 5u);
  }
  EXPECT_GE(totals.counts["faults"], 10 * seeds);
  EXPECT_GE(totals.counts["commits"], 8 * seeds);
  EXPECT_GE(totals.counts["decisions"], 2 * seeds);
  EXPECT_GE(totals.counts["restores"], 10 * seeds);
  EXPECT_GE(totals.counts["nodes destroyed"], seeds / 4);
  EXPECT_GE(totals.counts["slabs decoded"], seeds / 5);
  EXPECT_GE(totals.counts["bits flipped in slots"], seeds / 5);
  EXPECT_GE(totals.counts["bits flipped in guards"], seeds / 5);
  EXPECT_GE(totals.counts["slabs decoded that had rotted"], 2u);
  EXPECT_GE(totals.counts["worlds refused"], 2u);
  EXPECT_GE(totals.counts["replicas found to differ"], 1u);
  EXPECT_GE(totals.counts["old memories back"], 2u);
  EXPECT_GE(totals.counts["decided versions guarded anew"], 1u);
  EXPECT_GE(totals.counts["losses made good before a commit"], seeds / 25);
  EXPECT_GE(totals.counts["slots taken by spares"], 1u);
  EXPECT_GE(totals.counts["versions pinned"], seeds / 10);
}

TEST(ClusterSimTest, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(SimulateCluster({.seed = 3}).hash, SimulateCluster({.seed = 3}).hash);
  EXPECT_NE(SimulateCluster({.seed = 3}).hash, SimulateCluster({.seed = 4}).hash);
}

// Within a few seeds, beginning with one that is quick, some checker must find the bug.
void ExpectFound(PlantedBug bug, bool faults, const std::string& by, uint64_t first = 1) {
  std::string found;
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    const SimulationResult result = SimulateCluster({.seed = seed, .faults = faults, .bug = bug});
    if (!result.failure) continue;
    found += fmt::format("seed {}: {}\n", seed, *result.failure);
    if (result.failure->find(by) != std::string::npos) return;
  }
  FAIL() << "no checker said '" << by << "'\n" << found;
}

// They draw other faults when the simulation changes, so each bug that can be had in fewer words
// has a test of its own beside its code.
TEST(ClusterSimTest, SeedsThatOnceFailed) {
  for (const uint64_t seed : {73, 45, 154, 1723, 5114, 5325, 20565, 40709}) {
    ExpectPasses({.seed = seed});
  }
  for (const uint64_t seed : {uint64_t{195132959559771}, uint64_t{58645504118622}}) {
    ExpectPasses({.seed = seed});
  }
  for (const uint64_t seed : {uint64_t{1020}, uint64_t{5139}, uint64_t{9610762861}}) {
    ExpectPasses({.seed = seed, .store_losses = false});
  }
}

TEST(ClusterPlantedBugTest, WrongParity) {
  ExpectFound(PlantedBug::kWrongParity, false, "is not that of the slabs");
}
TEST(ClusterPlantedBugTest, CommitsUnguarded) {
  ExpectFound(PlantedBug::kCommitsUnguarded, false, "there is no complete guard", 3);
}
TEST(ClusterPlantedBugTest, CommitsUnsealed) {
  ExpectFound(PlantedBug::kCommitsUnsealed, false, "and nobody has rank");
}
TEST(ClusterPlantedBugTest, ReportsNothing) {
  ExpectFound(PlantedBug::kReportsNothing, false, "is lost, and no fault explains it");
  ExpectFound(PlantedBug::kReportsNothing, true, "can be had from what is left");
}
TEST(ClusterPlantedBugTest, LosesSlots) {
  ExpectFound(PlantedBug::kLosesSlots, true, "has freed its slab");
}
TEST(ClusterPlantedBugTest, ForgetsNodeSegment) {
  ExpectFound(PlantedBug::kForgetsNodeSegment, true, "has lost its slab");
}
TEST(ClusterPlantedBugTest, UnaskedFreshStart) {
  ExpectFound(PlantedBug::kUnaskedFreshStart, false, "and nobody has asked for it");
}
TEST(ClusterPlantedBugTest, GoesBack) {
  ExpectFound(PlantedBug::kGoesBack, true, "knows of timeline");
}
TEST(ClusterPlantedBugTest, GivesUpCommitted) {
  ExpectFound(PlantedBug::kGivesUpCommitted, false, "is given up");
}
TEST(ClusterPlantedBugTest, TellsNoSkip) {
  ExpectFound(PlantedBug::kTellsNoSkip, false, "no progress");
}
TEST(ClusterPlantedBugTest, WritesTwice) {
  ExpectFound(PlantedBug::kWritesTwice, false, "as committed a second time");
}
TEST(ClusterPlantedBugTest, ForgetsPins) {
  ExpectFound(PlantedBug::kForgetsPins, true, "is pinned, and machine 1 has freed");
}
TEST(ClusterPlantedBugTest, ReportsTheUnsealed) {
  ExpectFound(PlantedBug::kReportsTheUnsealed, true, "and has not");
}
TEST(ClusterPlantedBugTest, WritesUnfenced) {
  ExpectFound(PlantedBug::kWritesUnfenced, true, " leads");
}
TEST(ClusterPlantedBugTest, StoresManifests) {
  ExpectFound(PlantedBug::kStoresManifests, false, "are enough");
}

}  // namespace
}  // namespace unreft::sim
