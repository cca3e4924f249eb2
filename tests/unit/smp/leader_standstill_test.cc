// What the leader says, in its log and to the nodes, when nothing is committed for long.
#include <gmock/gmock.h>

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LeaderStandstillTest : public LeaderFixture {
 protected:
  LeaderStandstillTest() {
    options_.version_deadline = std::chrono::hours(24);
    Ask(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, 10);
    Protect(At(1, 10));
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == At(1, 10));
  }

  void Register(uint64_t slot, uint64_t step) {
    NodeReport& report = nodes_.at(NodeSlot{slot}).report;
    report.set_newest_timeline(At(1, 0).timeline.value);
    report.set_newest_step(step);
    report.clear_registered();
    RegisteredRank& rank = *report.add_registered();
    rank.set_rank(slot);
    rank.set_world(world_);
    rank.set_passed_step(step);
  }
  // All go on reporting.
  void Wait(Duration duration) {
    for (Duration waited{}; waited < duration; waited += seconds(1)) {
      for (auto& [slot, node] : nodes_) Report(slot);
      Settle(seconds(1));
    }
  }
  std::string Obstacle() {
    Report(NodeSlot{0});
    return nodes_.at(NodeSlot{0}).reply.obstacle();
  }
};

TEST_F(LeaderStandstillTest, WhileVersionsAreCommittedNothingIsSaid) {
  for (uint64_t step = 11; step < 200; ++step) {
    for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, step);
    Protect(At(1, step));
    ReportAll();
  }
  EXPECT_EQ(Obstacle(), "");
  EXPECT_EQ(sink_.Count("nothing is committed"), 0U);
}

TEST_F(LeaderStandstillTest, AJobThatTakesNoSnapshotsStandsStillByItself) {
  Wait(seconds(600));
  EXPECT_EQ(Obstacle(), "");
  EXPECT_EQ(sink_.Count("nothing is committed"), 0U);
}

TEST_F(LeaderStandstillTest, TheRankThatIsWaitedForIsNamedAgainAndAgain) {
  for (const uint64_t slot : {0, 1, 3}) {
    Register(slot, 11);
    Seal(NodeSlot{slot}, At(1, 11), Rank{slot});
  }
  Wait(seconds(15));
  EXPECT_EQ(Obstacle(), "step 11 waits for rank 2");
  EXPECT_EQ(sink_.Count("nothing is committed"), 0U) << "it may be a pause of its own";
  Wait(seconds(50));
  EXPECT_EQ(
      sink_.Count("version 1:10 is the newest that is, step 11 waits: step 11 waits for rank 2"),
      1U);
  Wait(seconds(500));
  EXPECT_EQ(sink_.Count("nothing is committed since"), 4U) << "60, 120, 240 and 480 s";
  for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, 12);
  nodes_.at(NodeSlot{2}).versions.clear();
  Protect(At(1, 12));
  ReportAll();
  ReportAll();
  EXPECT_EQ(Obstacle(), "");
  EXPECT_EQ(sink_.Count("versions are committed again: step 12 is"), 1U);
}

TEST_F(LeaderStandstillTest, TheNodeThatHasNotProtectedIsNamedWithItsAddress) {
  for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, 11);
  Protect(At(1, 11));
  nodes_.at(NodeSlot{1}).versions.at(At(1, 11)).set_guarded(false);
  Wait(seconds(15));
  EXPECT_THAT(Obstacle(), HasSubstr("all ranks have completed step 11, and node 1 (node1"));
}

TEST_F(LeaderStandstillTest, AStoreThatTakesNothingIsNamedFirst) {
  kv_store_.disk().set_bytes_max(0);
  for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, 11);
  Protect(At(1, 11));
  Wait(seconds(15));
  EXPECT_THAT(Obstacle(), AllOf(testing::StartsWith("the meta store does not take what is decided"),
                                HasSubstr("the disk refuses to be written")));
  kv_store_.disk().set_bytes_max(UINT64_MAX);
  Wait(seconds(5));
  EXPECT_EQ(VersionOf(commit()), At(1, 11));
  EXPECT_EQ(Obstacle(), "");
}

TEST_F(LeaderStandstillTest, RanksThatAreFarApartAreNamedWithTheirDistance) {
  Register(0, 510);
  Seal(NodeSlot{0}, At(1, 500), Rank{0});
  for (const uint64_t slot : {1, 2, 3}) Register(slot, 110);
  Wait(seconds(15));
  EXPECT_THAT(Obstacle(), HasSubstr("at step 510: they are 400 steps apart, and a version needs "
                                    "all ranks at one step; step 500 waits for rank 1, 2, 3"));
}

TEST_F(LeaderStandstillTest, ALostNodeAndRanksThatAreNowhereAreNamed) {
  for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, 11);
  for (const uint64_t slot : {0, 1, 2}) Seal(NodeSlot{slot}, At(1, 11), Rank{slot});
  Leave(NodeSlot{3});
  Wait(seconds(15));
  EXPECT_EQ(Obstacle(),
            "node 3 is lost: start its daemon again, or one with --spare, or "
            "restart the job without it; of 4 ranks, rank 3 has "
            "not registered its tensors at any node; step 11 waits for rank 3");
}

TEST_F(LeaderStandstillTest, WhatIsLostIsSaidWithWhatItMeansAndSoIsItsReturn) {
  Leave(NodeSlot{3});
  EXPECT_EQ(sink_.Count("node 3 is lost: its daemon has been absent for more than 1000 ms. Its "
                        "group (nodes 0, 1, 2, 3) stands one loss less. Nothing is committed until "
                        "a daemon takes its slot"),
            1U);
  EXPECT_EQ(sink_.Count("4 nodes, of which node 3 is lost"), 1U);
  Join(NodeSlot{3});
  Settle(seconds(2));
  EXPECT_EQ(sink_.Count("node 3 is back, with all that it held"), 1U);
  EXPECT_EQ(sink_.Count("4 nodes, none is lost"), 2U);
}

}  // namespace
}  // namespace unreft::smp
