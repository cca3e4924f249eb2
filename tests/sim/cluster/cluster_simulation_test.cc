// The simulation of clusters over many seeds, over seeds that found bugs, and with bugs
// planted to see the checkers find them.

#include "tests/sim/cluster/cluster_simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/sim/cluster/cluster_faults.h"
#include "tests/sim/cluster/standstill_checker.h"
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
    const uint64_t some = kind.one_in < 16 ? 5 : 1;
    EXPECT_GE(totals.counts[fmt::format("fault: {}", kind.name)], some);
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
  EXPECT_GE(totals.counts["reshapes"], seeds / 5);
  EXPECT_GE(totals.counts["replicas found to differ"], 1u);
  EXPECT_GE(totals.counts["old memories back"], 2u);
  EXPECT_GE(totals.counts["decided versions guarded anew"], 1u);
  EXPECT_GE(totals.counts["losses made good before a commit"], seeds / 25);
  EXPECT_GE(totals.counts["slots taken by spares"], 1u);
  EXPECT_GE(totals.counts["versions pinned"], seeds / 10);
  EXPECT_GE(totals.counts["nodes that came later"], seeds / 10);
  EXPECT_GE(totals.counts["daemons with other options refused"], seeds / 25);
  EXPECT_GE(totals.counts["second daemons refused"], seeds / 50);
  EXPECT_GE(totals.counts["attempts that ask for an earlier step"], 1u);
  EXPECT_GE(totals.counts["fresh starts ordered"], 1u);
  EXPECT_GE(totals.counts["resizes ordered"], seeds / 20);
  EXPECT_GE(totals.counts["hosts taken away by an order"], 1u);
  EXPECT_GE(totals.counts["orders of a fresh start refused"], 1u);
  // Nothing says that commits stand still unless they are looked for.
  EXPECT_GE(totals.counts["times that all were there"], 10 * seeds);
  EXPECT_GE(totals.counts["commits after all were there"], 10 * seeds);
  EXPECT_GE(totals.counts["ranks told of a standstill"], seeds / 10);
}

TEST(StandstillCheckerTest, ReadsWhoIsNamed) {
  const NamedMissing missing = MissingBy(
      "node 3 is lost: start its daemon again, or one with --spare, or restart the job without it; "
      "node 0, 12 is absent: its "
      "daemon has ended, or does not reach the meta store; node 5 (node5) is present and has told "
      "the leader nothing; of 9 ranks, rank 2, 7 has not registered its tensors at any node; rank "
      "1 "
      "of node 4 (node4) is at step 10");
  EXPECT_EQ(missing.nodes, (std::set{NodeSlot{3}, NodeSlot{0}, NodeSlot{12}}));
  EXPECT_EQ(missing.ranks, (std::set{Rank{2}, Rank{7}}));
  EXPECT_TRUE(
      MissingBy("all ranks have completed step 5, and node 1 has not protected it").nodes.empty());
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
    if (result.failure->find(by) == std::string::npos) continue;
    fmt::print("{}", found);
    return;
  }
  FAIL() << "no checker said '" << by << "'\n" << found;
}

// They draw other faults when the simulation changes, so each bug that can be had in fewer words
// has a test of its own beside its code.
TEST(ClusterSimTest, SeedsThatOnceFailed) {
  for (const uint64_t seed : {73, 45, 154, 1723, 5114, 5325, 20565, 40709}) {
    ExpectPasses({.seed = seed});
  }
  for (const uint64_t seed : {uint64_t{195132959559771}, uint64_t{58645504118622},
                              uint64_t{235631537371882}, uint64_t{134774841258594}}) {
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
TEST(ClusterPlantedBugTest, TellsNoCopy) {
  ExpectFound(PlantedBug::kTellsNoCopy, true, "knows of timeline", 100);
}
TEST(ClusterPlantedBugTest, TellsNoSkip) {
  ExpectFound(PlantedBug::kTellsNoSkip, false, "standstill: nothing is committed");
}
// A second launcher ends the first one's timeline.
TEST(ClusterPlantedBugTest, CallsItOver) {
  ExpectFound(PlantedBug::kCallsItOver, true, "restores while all ranks of attempt");
}
TEST(ClusterPlantedBugTest, KeepsGroups) {
  ExpectFound(PlantedBug::kKeepsGroups, true, "standstill: nothing is committed");
  ExpectFound(PlantedBug::kKeepsGroups, true, "an order ");
}
TEST(ClusterPlantedBugTest, ForgetsName) {
  ExpectFound(PlantedBug::kForgetsName, true, "is told of nothing that stands in the way");
}
TEST(ClusterPlantedBugTest, NamesAnother) {
  ExpectFound(PlantedBug::kNamesAnother, true, "is said to be missing, and is there", 520);
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
  ExpectFound(PlantedBug::kWritesUnfenced, true, " leads", 260);
}
TEST(ClusterPlantedBugTest, StoresManifests) {
  ExpectFound(PlantedBug::kStoresManifests, false, "are enough");
}

}  // namespace
}  // namespace unreft::sim
