// What is decided that is restored, and what has to be known before.
#include "smp/job/decision_rules.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::HasSubstr;

DecisionKind KindOf(const Move& move) {
  return static_cast<DecisionKind>(move.write->timeline->decision().kind());
}

class DecisionRulesTest : public RulesFixture {
 protected:
  Move Next() { return Ask(&DecisionRule); }
  void AskFrom(uint64_t slot, uint64_t attempt = 1) {
    NodeReport& report = Report(slot);
    report.set_attempt(attempt);
    report.set_world(kNodes);
    report.clear_asking();
    report.add_asking()->set_rank(slot);
    Tell(slot);
  }
  // The round is under way, and all nodes have stopped for it.
  void Close() {
    TimelineRecord& timeline = records_.timeline.value;
    timeline.set_closing(true);
    timeline.set_round(1);
    timeline.set_attempt(1);
    timeline.set_world(kNodes);
    reading_.Follow(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      Report(slot).set_round_closed(1);
      Tell(slot);
    }
  }
  void Read(uint64_t slot, Version version) {
    reading_.End(RoundReading::LifeOf(NodeSlot{slot}, Report(slot)), version);
    reading_.Keep(version, ManifestOf(slot));
  }
};

TEST_F(DecisionRulesTest, WhileNobodyAsksNothingIsDecided) { EXPECT_TRUE(IsNone(Next())); }

TEST_F(DecisionRulesTest, ARoundBeginsWhenAllRanksOfTheAttemptAsk) {
  AskFrom(0);
  EXPECT_TRUE(IsNone(Next()));
  AskFrom(1);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  EXPECT_TRUE(move.write->timeline->closing());
  EXPECT_EQ(move.write->timeline->round(), 1U);
  ASSERT_EQ(move.write->timeline->asked_size(), 2);
  EXPECT_EQ(move.write->timeline->asked(1).slot(), 1U) << "from where it asks";
}

TEST_F(DecisionRulesTest, OfTwoAttemptsTheNewestAsks) {
  AskFrom(0, 1);
  AskFrom(1, 2);
  const auto asked = WhoAsks(records_, CallRoll());
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->attempt, 2U);
  EXPECT_EQ(asked->ranks.size(), 1U);
}

TEST_F(DecisionRulesTest, WhoHasNotHeardOfTheLastDecisionDoesNotAsk) {
  AskFrom(0);
  AskFrom(1);
  records_.timeline.value.mutable_decision()->set_round(1);
  EXPECT_TRUE(IsNone(Next()));
  Report(0).set_round_applied(1);
  Tell(0);
  EXPECT_EQ(WhoAsks(records_, CallRoll())->ranks.size(), 1U);
}

TEST_F(DecisionRulesTest, RanksThatDoNotAskInTimeAreNamed) {
  AskFrom(0);
  asked_since_ = {.attempt = 1, .round = 0, .since = now_};
  Move move = Next();
  EXPECT_FALSE(move.write);
  EXPECT_EQ(move.wake, now_ + options_.restore_wait);
  now_ += options_.restore_wait;
  move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_EQ(KindOf(move), DecisionKind::kFailed);
  EXPECT_THAT(move.write->timeline->decision().status_message(), HasSubstr("missing: rank 1"));
}

TEST_F(DecisionRulesTest, EveryMemberThatIsNotLostHasToStopFirst) {
  Close();
  Report(1).set_round_closed(0);
  Tell(1);
  EXPECT_TRUE(Next().waits);
  records_.view.value.mutable_members(1)->set_lost(true);
  EXPECT_TRUE(Next().write);
}

TEST_F(DecisionRulesTest, WhereNothingWasEverCommittedAllBeginAnew) {
  Close();
  const Move move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_EQ(KindOf(move), DecisionKind::kFresh);
  EXPECT_FALSE(move.write->commit);
  EXPECT_EQ(NewestTimeline(*move.write->timeline), Timeline{2});
}

TEST_F(DecisionRulesTest, TheNewestVersionIsReadAgainEverywhereAndDecidedThen) {
  RecordCommit(At(1, 4));
  Protect(At(1, 5));
  Close();
  Move move = Next();
  EXPECT_TRUE(move.waits && !move.write);
  ASSERT_EQ(move.ask_reading.size(), 2U);
  EXPECT_TRUE(move.ask_reading[0].want_manifests) << "it was not checked as a whole";
  reading_.Begin(move.ask_reading[0].life, At(1, 5));
  EXPECT_EQ(Next().ask_reading.size(), 1U) << "the other is asked already";
  Read(0, At(1, 5));
  Read(1, At(1, 5));
  move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(KindOf(move), DecisionKind::kRestored);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 5));
  EXPECT_STREQ(move.fault_point, "leader.decision");
}

TEST_F(DecisionRulesTest, ANextProcessReadsForItself) {
  RecordCommit(At(1, 5));
  Protect(At(1, 5));
  Close();
  Read(0, At(1, 5));
  Read(1, At(1, 5));
  EXPECT_TRUE(Next().write);
  records_.present[NodeSlot{1}].set_session(2);
  Report(1).set_session(2);
  board_.Take(NodeSlot{1}, Report(1));
  EXPECT_EQ(Next().ask_reading.size(), 1U);
}

TEST_F(DecisionRulesTest, WhatDoesNotFitTogetherIsNoCandidate) {
  Protect(At(1, 5));
  Close();
  Read(0, At(1, 5));
  Read(1, At(1, 5));
  layout::SlotManifest other = ManifestOf(1);
  other.capture_mode = layout::CaptureMode::kFull;
  reading_.Keep(At(1, 5), other);
  const Move move = Next();
  EXPECT_EQ(move.misfit, At(1, 5));
  reading_.NoteMisfit(*move.misfit);
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFresh);
}

TEST_F(DecisionRulesTest, WhatWasGivenUpIsNoCandidate) {
  Protect(At(1, 5));
  Close();
  records_.abandoned.value.set_timeline(1);
  records_.abandoned.value.set_through_step(5);
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFresh);
}

TEST_F(DecisionRulesTest, WhatIsCommittedAndNowhereWholeIsRefusedAloud) {
  RecordCommit(At(1, 5));
  Seal(0, At(1, 5));
  Close();
  const Move move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_EQ(KindOf(move), DecisionKind::kFailed);
  EXPECT_THAT(move.write->timeline->decision().status_message(), HasSubstr("unrecoverable"));
  EXPECT_FALSE(move.write->commit);
}

TEST_F(DecisionRulesTest, AnotherNumberOfRanksGetsWhatIsThere) {
  RecordCommit(At(1, 5));
  Protect(At(1, 5));
  Close();
  records_.timeline.value.set_world(3);
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Report(slot).set_ranks(1);
    Report(slot).set_any_world(true);
    Tell(slot);
    Read(slot, At(1, 5));
  }
  const Move move = Next();
  EXPECT_EQ(KindOf(move), DecisionKind::kRestored);
  EXPECT_EQ(move.write->commit->world(), 2U) << "as it was saved";
}

// A daemon of that release would give each rank the part of the one that had its number.
TEST_F(DecisionRulesTest, ADaemonThatKnowsNoOtherWorldIsNamed) {
  RecordCommit(At(1, 5));
  Protect(At(1, 5));
  Close();
  Report(0).set_any_world(true);
  Report(1).set_ranks(1);
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Tell(slot);
    Read(slot, At(1, 5));
  }
  EXPECT_EQ(KindOf(Next()), DecisionKind::kRestored) << "as many ranks as there were";
  records_.timeline.value.set_world(3);
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFailed);
  EXPECT_THAT(Next().write->timeline->decision().status_message(),
              AllOf(HasSubstr("saved by 2 ranks"), HasSubstr("has 3"), HasSubstr("node 1")));
  Report(1).set_ranks(0);
  Tell(1);
  EXPECT_EQ(KindOf(Next()), DecisionKind::kRestored) << "it has no rank to give anything to";
}

TEST_F(DecisionRulesTest, TheSameProcessesGetTheSameTimelineUntilACaptureBegins) {
  RecordCommit(At(1, 5));
  TimelineEntry& entry = *records_.timeline.value.add_chain();
  entry.set_timeline(2);
  entry.set_parent_timeline(1);
  entry.set_parent_step(5);
  records_.timeline.value.mutable_decision()->set_timeline(2);
  Protect(At(1, 5));
  Close();
  Read(0, At(1, 5));
  Read(1, At(1, 5));
  EXPECT_EQ(NewestTimeline(*Next().write->timeline), Timeline{2});
  Report(1).set_capture_began(true);
  Tell(1);
  EXPECT_EQ(NewestTimeline(*Next().write->timeline), Timeline{3});
}

}  // namespace
}  // namespace unreft::smp
