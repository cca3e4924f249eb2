// What the leader writes again of what the meta store has lost.
#include "smp/job/seed_rule.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

class SeedRuleTest : public RulesFixture {
 protected:
  SeedRuleTest() { seeded_.clear(); }
  Move Next() { return Ask(&SeedRule); }
  // That timeline follows the step of timeline 1.
  void OpenTimeline(NodeReport& report, uint64_t timeline, uint64_t parent_step) {
    TimelineEntry& entry = *report.add_chain();
    entry.set_timeline(timeline);
    entry.set_parent_timeline(1);
    entry.set_parent_step(parent_step);
  }
  void TellCommit(uint64_t slot, Version version, uint64_t newest_timeline) {
    NodeReport& report = Report(slot);
    report.set_committed_timeline(version.timeline.value);
    report.set_committed_step(version.step.value);
    report.set_committed_world(kNodes);
    report.set_newest_timeline(newest_timeline);
    board_.Take(NodeSlot{slot}, report);
  }
};

TEST_F(SeedRuleTest, WhereNothingIsLostItIsKnownFromThenOn) {
  const Move move = Next();
  EXPECT_FALSE(move.write || move.waits);
  EXPECT_EQ(move.seeded, records_.store_id);
  seeded_ = move.seeded;
  EXPECT_TRUE(IsNone(Next()));
}

TEST_F(SeedRuleTest, AllThatLiveAreWaitedForUntilThatIsKnown) {
  records_.present[NodeSlot{1}].set_session(2);  // and has told nothing
  EXPECT_TRUE(Next().waits);
  seeded_ = records_.store_id;
  EXPECT_TRUE(IsNone(Next()));
  seeded_.clear();
  records_.view.value.mutable_members(1)->set_lost(true);
  EXPECT_FALSE(Next().waits);
}

TEST_F(SeedRuleTest, ACommitThatOnlyNodesKnowIsWrittenAgain) {
  Seal(0, At(1, 5));
  TellCommit(0, At(1, 5), 1);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 5));
  EXPECT_EQ(move.write->commit->world(), kNodes);
  EXPECT_EQ(move.write->commit->groups_size(), 1);
  RecordCommit(At(1, 6));
  EXPECT_FALSE(Next().write) << "the record is newer";
}

TEST_F(SeedRuleTest, TheNewestChainIsWrittenAgainWithoutTheCommitOfBefore) {
  RecordCommit(At(1, 9));
  OpenTimeline(Report(1), 2, 4);
  TellCommit(1, At(1, 4), 2);
  TellCommit(0, At(1, 9), 1);  // has not heard of the decision
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline && move.write->commit);
  EXPECT_EQ(NewestTimeline(*move.write->timeline), Timeline{2});
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 4));
}

TEST_F(SeedRuleTest, ARoundThatNodesHaveHeardTheEndOfIsNotBegunAgain) {
  records_.timeline.value.set_closing(true);
  records_.timeline.value.set_round(3);
  records_.timeline.value.mutable_decision()->set_round(2);
  Report(1).set_round_applied(2);
  Tell(1);
  EXPECT_FALSE(Next().write);
  Report(1).set_round_applied(3);
  Tell(1);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  EXPECT_FALSE(move.write->timeline->closing());
  EXPECT_EQ(move.write->timeline->round(), 3U);
  EXPECT_FALSE(move.write->timeline->has_decision());
}

TEST_F(SeedRuleTest, ThatReplicasDifferIsWrittenAgain) {
  Report(0).set_captures_all(true);
  Tell(0);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->abandoned);
  EXPECT_EQ(move.write->abandoned->full_capture_from_timeline(), 1U);
  records_.abandoned.value = *move.write->abandoned;
  EXPECT_FALSE(Next().write);
}

}  // namespace
}  // namespace unreft::smp
