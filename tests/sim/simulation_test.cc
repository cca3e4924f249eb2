// The simulation over many seeds, the seeds that found bugs, and bugs planted to see the checkers
// find them.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/format.h"
#include "tests/sim/history.h"
#include "tests/sim/many_seeds.h"
#include "tests/sim/simulation.h"

namespace unreft::sim {
namespace {

void ExpectPasses(const SimulationOptions& options) {
  const SimulationResult result = Simulate(options);
  EXPECT_FALSE(result.failure) << "seed " << options.seed << ": " << *result.failure << "\n"
                               << TailOf(result, 60);
}

uint64_t SeedsOfThisRun() {
  const char* seeds = std::getenv("UNREFT_SIM_SEEDS");  // fewer under a sanitizer
  return seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : 200;
}

// A history that has a commit.
class HistoryTest : public testing::Test {
 protected:
  HistoryTest() {
    history_.OnDecided(Timeline{1}, Version{}, std::nullopt, Duration{});
    Commit({Timeline{1}, Step{1}});
    Commit({Timeline{1}, Step{2}});
  }
  void Commit(Version version) {
    history_.OnSnapshotStarted(version, Attempt{1}, 1);
    history_.OnCommitted(version, 1);
  }
  std::string failure() const { return trace_.failure().value_or(""); }

  SimScheduler scheduler_{1};
  Trace trace_{scheduler_, false};
  History history_{trace_};
};

TEST_F(HistoryTest, AnExcuseIsForOneDecision) {
  const Version first{Timeline{1}, Step{1}};
  history_.OnDecided(Timeline{2}, first, first, Duration{}, true);
  EXPECT_EQ(failure(), "");
  history_.OnSnapshotStarted({Timeline{2}, Step{2}}, Attempt{2}, 1);
  history_.OnCommitted({Timeline{2}, Step{2}}, 1);
  history_.OnDecided(Timeline{3}, first, first, Duration{});
  EXPECT_EQ(failure(), "2:2 was committed, 1:1 is restored, and no fault explains it");
}

TEST_F(HistoryTest, WhatWasRestoredWholeIsNotDamagedAnyMore) {
  const Version second{Timeline{1}, Step{2}};
  history_.OnDamaged(second, Duration{});
  history_.OnDecided(Timeline{2}, second, second, Duration{});
  EXPECT_EQ(failure(), "");
  history_.OnUnrecoverable(Attempt{2}, std::nullopt);
  EXPECT_EQ(failure(), "1:2 was committed and is lost, and no fault explains it");
}

TEST_F(HistoryTest, ALossIsHeardByTheAttemptThatItWasDecidedFor) {
  history_.OnAttempt(Attempt{2}, Attempt{2});
  history_.OnLost(Attempt{2}, true);
  history_.OnUnrecoverable(Attempt{2}, std::nullopt);
  EXPECT_EQ(failure(), "");
  history_.OnUnrecoverable(Attempt{3}, std::nullopt);
  EXPECT_EQ(failure(), "1:2 was committed and is lost, and no fault explains it");
}

TEST_F(HistoryTest, AFreshStartIsAskedFor) {
  history_.OnFreshStart(Timeline{2});
  EXPECT_EQ(failure(), "a fresh start gives up 1:2, and nobody has asked for it");
}

TEST_F(HistoryTest, AnOrderEndsWithTheNextCommit) {
  history_.OnFreshStartAsked(Attempt{1});
  history_.OnFreshStart(Timeline{2});
  history_.OnFreshStart(Timeline{3});
  EXPECT_EQ(failure(), "");
  Commit({Timeline{3}, Step{1}});
  history_.OnFreshStart(Timeline{4});
  EXPECT_EQ(failure(), "a fresh start gives up 3:1, and nobody has asked for it");
}

TEST_F(HistoryTest, WhoStartsAfterAFreshStartHearsOfNoLoss) {
  history_.OnFreshStartAsked(Attempt{2});
  history_.OnFreshStart(Timeline{2});
  history_.OnUnrecoverable(Attempt{2}, std::nullopt);
  EXPECT_EQ(failure(), "");
  history_.OnUnrecoverable(Attempt{3}, std::nullopt);
  EXPECT_EQ(failure(), "unrecoverable, it says, but nothing was committed");
}

TEST_F(HistoryTest, ALossThatIsHeardLateIsNotOfWhatWasCapturedSince) {
  history_.OnFreshStartAsked(Attempt{2});
  history_.OnFreshStart(Timeline{2});
  history_.OnDecided(Timeline{3}, Version{}, std::nullopt, Duration{});
  history_.OnToldRestored(Rank{0}, Attempt{3}, Timeline{3}, Version{}, 0);
  const Version since{Timeline{3}, Step{1}};
  Commit(since);
  history_.OnUnrecoverable(Attempt{2}, since);
  EXPECT_EQ(failure(), "");
  history_.OnUnrecoverable(Attempt{3}, since);
  EXPECT_EQ(failure(), "unrecoverable, it says, but 3:1 is whole");
}

TEST(SimTest, WithoutFaultsEverySeedTrains) {
  for (uint64_t seed = 1; seed <= 5; ++seed) ExpectPasses({.seed = seed, .faults = false});
}

TEST(SimTest, ManySeedsSurviveFaults) {
  const uint64_t first = FirstSeed(1);
  const uint64_t seeds = SeedsOfThisRun();
  fmt::print("unreft_sim --first-seed {} --seeds {}\n", first, seeds);
  SeedTotals totals =
      RunSeeds(Simulate, {}, {first, seeds}, [](uint64_t seed, const SimulationResult& result) {
        ADD_FAILURE() << "unreft_sim --seed " << seed << ": " << *result.failure << "\n"
                      << TailOf(result, 60);
        return false;
      });
  fmt::print("{}\n", Describe(totals));
  EXPECT_GT(totals.counts["faults"], totals.seeds);
}

TEST(SimTest, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(Simulate({.seed = seed}).hash, Simulate({.seed = seed}).hash) << "seed " << seed;
  }
  EXPECT_NE(Simulate({.seed = 1}).hash, Simulate({.seed = 2}).hash);
}

// They draw other faults when the simulation changes, so each bug that can be had in fewer words
// has a test of its own beside its code.
TEST(SimTest, SeedsThatOnceFailed) {
  for (const uint64_t seed : {1, 6, 8, 29, 59}) ExpectPasses({.seed = seed});
  for (const uint64_t seed : {30779152794245, 279543764858533, 42028863046962, 247518586860963})
    ExpectPasses({.seed = seed});
}

// Within a few seeds, beginning with one that is quick, some checker must find the bug.
void ExpectFound(PlantedBug bug, const std::string& by, uint64_t first = 1) {
  std::string found;
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    const SimulationResult result = Simulate({.seed = seed, .bug = bug});
    if (!result.failure) continue;
    found += fmt::format("seed {}: {}\n", seed, *result.failure);
    if (result.failure->find(by) != std::string::npos) return;
  }
  FAIL() << "no checker said '" << by << "'\n" << found;
}

TEST(PlantedBugTest, CopiesTooEarly) {
  ExpectFound(PlantedBug::kCopiesTooEarly, "sealed with wrong bytes");
}
TEST(PlantedBugTest, NoFence) { ExpectFound(PlantedBug::kNoFence, "sealed with wrong bytes"); }
// What the second net is for (docs/second_net.md): no such state is sealed, and the job goes on.
TEST(PlantedBugTest, ForgetsFence) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ExpectPasses({.seed = seed, .bug = PlantedBug::kForgetsFence});
  }
}
TEST(PlantedBugTest, EndsTooEarly) {
  // The copies land in a slot that is another version's by then, before it is sealed or after.
  ExpectFound(PlantedBug::kEndsTooEarly, "sealed", 95);
}
TEST(PlantedBugTest, ForgetsNodeSegment) {
  ExpectFound(PlantedBug::kForgetsNodeSegment, "nothing stored, it says, but");
}
TEST(PlantedBugTest, LosesSlots) { ExpectFound(PlantedBug::kLosesSlots, "no fault explains it"); }
TEST(PlantedBugTest, StaleDecision) {
  ExpectFound(PlantedBug::kStaleDecision, "which was not decided");
}
TEST(PlantedBugTest, SwapsPieces) {
  ExpectFound(PlantedBug::kSwapsPieces, "has wrong bytes after the restore");
}
TEST(PlantedBugTest, TakesRanksByNumber) {
  ExpectFound(PlantedBug::kTakesRanksByNumber, "are others");
}
TEST(PlantedBugTest, ForgetsCommit) {
  ExpectFound(PlantedBug::kForgetsCommit, "nothing stored, it says, but");
}

}  // namespace
}  // namespace unreft::sim
