// What the next commit is said to wait for.
#include "smp/job/obstacles.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

class ObstaclesTest : public RulesFixture {
 protected:
  ObstaclesTest() {
    for (uint64_t slot = 0; slot < kNodes; ++slot) Register(slot, 4);
  }
  void Register(uint64_t slot, uint64_t step) {
    Report(slot).clear_registered();
    RegisteredRank& rank = *Report(slot).add_registered();
    rank.set_rank(slot);
    rank.set_world(kNodes);
    rank.set_passed_step(step);
    rank.add_capturing(step);
    Tell(slot);
  }
  std::string Describe(const absl::Status& last_write = absl::OkStatus()) {
    const RollCall roll = CallRoll();
    return DescribeObstacles(FactsOf(roll), last_write);
  }
};

TEST_F(ObstaclesTest, NothingStandsInTheWay) { EXPECT_EQ(Describe(), ""); }

TEST_F(ObstaclesTest, NodesThatAreLostAbsentOrSilentAreNamed) {
  records_.present[NodeSlot{0}].set_session(2);
  records_.present.erase(NodeSlot{1});
  EXPECT_EQ(Describe(),
            "node 1 is absent: its daemon has ended, or does not reach the meta store; node 0 "
            "(host0) is present and has told the leader nothing");
  records_.view.value.mutable_members(1)->set_lost(true);
  Enter(0);
  EXPECT_EQ(Describe(),
            "node 1 is lost: start its daemon again, or one with --spare, or "
            "restart the job without it; of 2 ranks, rank 1 has "
            "not registered its tensors at any node");
}

// Nobody guards what its ranks capture, and nothing else says so.
TEST_F(ObstaclesTest, ANodeThatIsLeftOutAndHasRanksIsNamed) {
  Group& group = *records_.view.value.mutable_groups(0);
  group.clear_slots();
  group.add_slots(0);
  EXPECT_EQ(Describe(), "");
  Report(1).set_ranks(1);
  Tell(1);
  EXPECT_THAT(Describe(), ::testing::StartsWith("node 1 (host1) has ranks and is left out"));
}

TEST_F(ObstaclesTest, AStoreThatTakesNothingIsNamedFirst) {
  records_.present.erase(NodeSlot{1});
  EXPECT_THAT(Describe(absl::ResourceExhaustedError("full")),
              testing::StartsWith("the meta store does not take what is decided: full (docs/"));
}

// Until the first commit of a restart the record has the number that was before.
TEST_F(ObstaclesTest, AfterARestartWithFewerRanksNoneOfTheOthersIsMissed) {
  records_.commit.value.set_world(4);
  EXPECT_EQ(Describe(), "");
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Report(slot).clear_registered();
    Tell(slot);
  }
  EXPECT_EQ(Describe(), "of 4 ranks, rank 0, 1, 2, 3 has not registered its tensors at any node");
}

TEST_F(ObstaclesTest, RanksFarApartAreNamed) {
  Register(1, 40);
  EXPECT_EQ(Describe(),
            "rank 0 of node 0 (host0) is at step 4, rank 1 of node 1 (host1) at step 40: they are "
            "36 steps apart, and a version needs all ranks at one step");
}

TEST_F(ObstaclesTest, TheRankThatTheOldestVersionWaitsForIsNamedThenTheNode) {
  Holding(0, At(1, 4)).set_guarded(false);
  Tell(0);
  EXPECT_EQ(Describe(), "no rank has completed step 4");
  Seal(0, At(1, 4));
  EXPECT_EQ(Describe(), "step 4 waits for rank 1");
  Seal(1, At(1, 4));
  Guard(0, At(1, 4));
  EXPECT_EQ(Describe(), "all ranks have completed step 4, and node 1 (host1) has not protected it");
  versions_.rejected[At(1, 4)] = "it does not fit";
  records_.abandoned.value.set_reason("step 3: as it was");
  EXPECT_EQ(Describe(), "the last that was given up was step 3: as it was");
}

}  // namespace
}  // namespace unreft::smp
