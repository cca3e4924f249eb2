// What is committed and what is given up.
#include "smp/job/commit_rules.h"

#include "smp/job/next_move.h"
#include "smp/job/refusals.h"
#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr Version kVersion{Timeline{1}, Step{5}};

class CommitRulesTest : public RulesFixture {
 protected:
  Move Commit() { return Ask(&CommitRule); }
  Move Abandon() { return Ask(&AbandonRule); }
  // What a rank captures, of that node.
  void Pass(uint64_t slot, uint64_t step) {
    Report(slot).clear_registered();
    RegisteredRank& rank = *Report(slot).add_registered();
    rank.set_rank(slot);
    rank.set_passed_step(step);
    Report(slot).set_newest_step(step);
    Tell(slot);
  }
  void Fail(uint64_t slot, Version version) {
    Holding(slot, version).set_failure("no room");
    Report(slot).set_newest_step(version.step.value);
    Tell(slot);
  }
};

TEST_F(CommitRulesTest, WhatIsProtectedIsCommitted) {
  LearnManifests();
  Protect(kVersion);
  const Move move = Commit();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), kVersion);
  EXPECT_EQ(move.write->commit->holders_size(), 2);
  EXPECT_TRUE(move.commits);
  EXPECT_STREQ(move.fault_point, "leader.commit");
}

TEST_F(CommitRulesTest, UntilAllIsSealedAndGuardedItIsLetBe) {
  LearnManifests();
  Seal(0, kVersion);
  EXPECT_TRUE(IsNone(Commit()));
  Seal(1, kVersion);
  EXPECT_TRUE(IsNone(Commit()));
  Guard(0, kVersion);
  EXPECT_TRUE(IsNone(Commit()));
  Guard(1, kVersion);
  EXPECT_TRUE(Commit().write);
}

TEST_F(CommitRulesTest, EveryMembersReportIsWaitedFor) {
  LearnManifests();
  Protect(kVersion);
  records_.present[NodeSlot{1}].set_session(2);
  EXPECT_TRUE(IsNone(Commit()));
}

TEST_F(CommitRulesTest, TheNewestIsCommittedAndNothingThatIsOlderThanTheRecord) {
  LearnManifests();
  Protect(At(1, 5));
  Protect(At(1, 6));
  EXPECT_EQ(VersionOf(*Commit().write->commit), At(1, 6));
  RecordCommit(At(1, 6));
  EXPECT_TRUE(IsNone(Commit()));
}

TEST_F(CommitRulesTest, NodesAreAskedForManifestsThatAreNotKnown) {
  Protect(kVersion);
  const Move move = Commit();
  EXPECT_FALSE(move.write);
  EXPECT_THAT(move.ask_manifests,
              ElementsAre(Pair(NodeSlot{0}, kVersion), Pair(NodeSlot{1}, kVersion)));
}

TEST_F(CommitRulesTest, ATimelinesFirstVersionIsOneWhoseReplicasWereCompared) {
  LearnManifests();
  options_.replica_check_every = 10;
  Protect(kVersion);
  Holding(0, kVersion).mutable_sealed(0)->add_replica_digests()->set_shard("w");
  Tell(0);
  const Move move = Commit();
  EXPECT_FALSE(move.write);
  EXPECT_EQ(move.rejected.at(kVersion), kReplicasNotCompared);
}

TEST_F(CommitRulesTest, WhereReplicasDifferAllCaptureAllTheyHoldFromNowOn) {
  Protect(kVersion);
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    ReplicaDigest& digest = *Holding(slot, kVersion).mutable_sealed(0)->add_replica_digests();
    digest.set_shard("w");
    digest.set_sampled(true);
    digest.set_digest(static_cast<uint32_t>(slot));
    Tell(slot);
  }
  Move move = Commit();
  ASSERT_TRUE(move.write && move.write->abandoned);
  EXPECT_EQ(move.write->abandoned->full_capture_from_timeline(), 1U);
  EXPECT_THAT(move.rejected.at(kVersion), HasSubstr("replicas of w differ"));
  EXPECT_FALSE(move.commits || move.abandons);
  records_.abandoned.value = *move.write->abandoned;
  move = Commit();
  EXPECT_FALSE(move.write) << "it is said";
  EXPECT_TRUE(move.rejected.contains(kVersion));
}

TEST_F(CommitRulesTest, ARejectedVersionIsGivenUpAndNotTriedAgain) {
  LearnManifests();
  Protect(kVersion);
  Report(0).set_newest_step(5);
  Tell(0);
  versions_.rejected[kVersion] = "it does not fit";
  EXPECT_TRUE(IsNone(Commit()));
  const Move move = Abandon();
  ASSERT_TRUE(move.write && move.write->abandoned);
  EXPECT_THAT(move.write->abandoned->reason(), HasSubstr("it does not fit"));
}

TEST_F(CommitRulesTest, WhatOneNodeSaysHasFailedIsGivenUp) {
  Fail(1, kVersion);
  const Move move = Abandon();
  ASSERT_TRUE(move.write && move.write->abandoned);
  EXPECT_EQ(move.write->abandoned->timeline(), 1U);
  EXPECT_EQ(move.write->abandoned->through_step(), 5U);
  EXPECT_EQ(move.write->abandoned->reason(), "step 5: node 1: no room");
  EXPECT_TRUE(move.abandons);
  records_.abandoned.value = *move.write->abandoned;
  EXPECT_FALSE(Abandon().write);
}

TEST_F(CommitRulesTest, WhatARankHasPassedIsGivenUp) {
  Pass(0, 5);
  Seal(0, kVersion);
  EXPECT_FALSE(Abandon().write);
  Pass(1, 6);
  EXPECT_THAT(Abandon().write->abandoned->reason(),
              HasSubstr("node 1: rank 1 is at step 6 and has not captured it"));
}

TEST_F(CommitRulesTest, ItIsWrittenOnceASecondAtMost) {
  Fail(1, kVersion);
  abandoning_.last = now_ - std::chrono::milliseconds(400);
  const Move move = Abandon();
  EXPECT_FALSE(move.write);
  EXPECT_EQ(move.wake, now_ + std::chrono::milliseconds(600));
  now_ = *move.wake;
  EXPECT_TRUE(Abandon().write);
}

// Its ranks hear of it at once, and its store is its own: no step is passed over for the sake of
// others, which it had been by 200 ms of steps at each skip.
TEST_F(CommitRulesTest, OfOneNodeItIsWrittenAtOnceAndUpToTheStepItself) {
  pace_.Note(Step{1}, now_);
  for (uint64_t step : {100, 5000, 10000}) pace_.Note(Step{step}, now_ += std::chrono::seconds(3));
  Fail(1, kVersion);
  EXPECT_GT(Abandon().write->abandoned->through_step(), 100U);
  options_.has_own_store = true;
  abandoning_.last = now_;
  abandoning_.in_vain = 3;
  EXPECT_EQ(Abandon().write->abandoned->through_step(), 5U);
}

TEST_F(CommitRulesTest, StepZeroIsGivenUpOnceAsAnyOther) {
  Fail(1, At(1, 0));
  records_.abandoned.value = *Abandon().write->abandoned;
  EXPECT_TRUE(IsAbandoned(records_.abandoned.value, At(1, 0)));
  EXPECT_FALSE(Abandon().write);
}

TEST_F(CommitRulesTest, StepZeroIsNotGivenUpOnceItIsCommitted) {
  RecordCommit(At(1, 0));
  Fail(1, At(1, 1));
  records_.abandoned.value = *Abandon().write->abandoned;
  EXPECT_FALSE(IsAbandoned(records_.abandoned.value, At(1, 0)));
  EXPECT_TRUE(IsAbandoned(records_.abandoned.value, At(1, 1)));
}

TEST_F(CommitRulesTest, RanksOnTheirWayBackAreWaitedForAsLongAsANodeMayBeAway) {
  Fail(1, kVersion);
  abandoning_.ranks_away_since = now_;
  EXPECT_FALSE(Abandon().write);
  now_ += options_.presence_ttl + options_.lost_grace;
  EXPECT_TRUE(Abandon().write);
}

TEST_F(CommitRulesTest, RanksAreThereOnceTheirNodesSayWhereTheyAre) {
  EXPECT_TRUE(AreAllRanksThere(CallRoll()));
  Report(1).set_ranks(1);
  Tell(1);
  EXPECT_FALSE(AreAllRanksThere(CallRoll()));
  Pass(1, 5);
  EXPECT_TRUE(AreAllRanksThere(CallRoll()));
  records_.present[NodeSlot{0}].set_session(2);
  EXPECT_FALSE(AreAllRanksThere(CallRoll()));
}

TEST_F(CommitRulesTest, WhatIsOverdueIsGivenUpUnlessItWaitsForADecision) {
  Protect(kVersion);
  Report(0).set_newest_step(5);
  Tell(0);
  versions_.since[kVersion] = now_;
  EXPECT_EQ(Abandon().wake, now_ + options_.version_deadline);
  versions_.overdue = {kVersion};
  EXPECT_TRUE(Abandon().write);
  // Its slabs can be decoded: the next decision finds it.
  records_.view.value.mutable_members(1)->set_lost(true);
  EXPECT_FALSE(Abandon().write);
}

TEST_F(CommitRulesTest, ALaterRuleSaysNothingBeforeAnEarlierOneIsCarriedOut) {
  LearnManifests();
  Protect(kVersion);
  Fail(1, At(1, 4));
  EXPECT_TRUE(Ask(&NextMove).abandons);
  records_.abandoned.value.set_timeline(1);
  records_.abandoned.value.set_through_step(4);
  EXPECT_TRUE(Ask(&NextMove).commits);
  records_.timeline.value.set_closing(true);
  EXPECT_FALSE(Ask(&NextMove).commits) << "while a decision is made nothing is";
  Lose(1);
  EXPECT_TRUE(Ask(&NextMove).write->view);
}

}  // namespace
}  // namespace unreft::smp
