// What is decided that is restored, and what has to be known before.
#include "smp/job/decision_rules.h"

#include "smp/job/attempts.h"
#include "smp/job/fresh_start.h"
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
  static int64_t PidOf(uint64_t rank, uint64_t attempt) {
    return static_cast<int64_t>(100 * attempt + rank);
  }
  void AskFrom(uint64_t slot, uint64_t attempt = 1, uint64_t world = kNodes) {
    NodeReport& report = Report(slot);
    report.set_attempt(attempt);
    report.set_world(world);
    report.clear_asking();
    report.add_asking()->set_rank(slot);
    report.mutable_asking(0)->set_pid(PidOf(slot, attempt));
    Tell(slot);
  }
  // All nodes have heard of a decision that was made for that attempt, whose ranks all live.
  void Train(uint64_t attempt) {
    TimelineRecord& timeline = records_.timeline.value;
    timeline.set_round(1);
    DecisionRecord& decision = *timeline.mutable_decision();
    decision.set_kind(static_cast<uint32_t>(DecisionKind::kFresh));
    decision.set_round(1);
    decision.set_attempt(attempt);
    decision.set_timeline(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      AskingRank& asked = *decision.add_asked();
      asked.set_rank(slot);
      asked.set_pid(PidOf(slot, attempt));
      asked.set_slot(slot);
      Report(slot).set_round_applied(1);
      Report(slot).set_lives_round(1);
      Tell(slot);
    }
  }
  // Of all that ask, once they have waited for too long.
  Move NextAtTheEnd() {
    asked_since_.clear();
    for (const Asked& asked : WhoAsk(records_, CallRoll())) asked_since_[asked.attempt] = now_;
    now_ += options_.restore_wait;
    return Next();
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

// The records were written again from a copy of before: who is further would close for it no more.
TEST_F(DecisionRulesTest, ARoundIsAboveAllThatAnyNodeHasCarriedOut) {
  AskFrom(0);
  Report(1).set_round_applied(7);
  AskFrom(1);
  const Move move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_EQ(move.write->timeline->round(), 8U);
}

TEST_F(DecisionRulesTest, ARoundThatANodeIsBeyondHasAnotherNumber) {
  Close();
  Report(1).set_round_closed(4);
  Tell(1);
  const Move move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_TRUE(move.write->timeline->closing());
  EXPECT_EQ(move.write->timeline->round(), 5U);
  EXPECT_EQ(move.write->timeline->attempt(), 1U);
}

TEST_F(DecisionRulesTest, RanksOfTwoAttemptsAreNotPutTogether) {
  AskFrom(0, 1);
  AskFrom(1, 2);
  const std::vector<Asked> asked = WhoAsk(records_, CallRoll());
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0].attempt, 1U);
  EXPECT_EQ(asked[1].attempt, 2U);
  EXPECT_TRUE(IsNone(Next()));
  AskFrom(1, 1);
  EXPECT_EQ(Next().write->timeline->attempt(), 1U) << "numbers have no order";
}

// Two launchers would end each other's timelines for ever.
TEST_F(DecisionRulesTest, WhileAllOfTheAttemptInForceLiveNothingIsDecidedForAnother) {
  Train(5);
  for (const uint64_t attempt : {1, 9}) {
    for (uint64_t slot = 0; slot < kNodes; ++slot) AskFrom(slot, attempt);
    EXPECT_FALSE(Next().write);
    const Move move = NextAtTheEnd();
    ASSERT_TRUE(move.write);
    const TimelineRecord& timeline = *move.write->timeline;
    EXPECT_FALSE(timeline.closing());
    EXPECT_EQ(KindOf(move), DecisionKind::kFailed);
    EXPECT_THAT(timeline.decision().status_message(), HasSubstr("all ranks of attempt 5 live"));
    EXPECT_EQ(timeline.in_force().attempt(), 5U);
    ASSERT_NE(DecisionInForce(timeline), nullptr);
    EXPECT_EQ(DecisionInForce(timeline)->round(), 1U);
  }
  Report(1).set_lives_round(0);  // one has ended
  Tell(1);
  EXPECT_TRUE(Next().write->timeline->closing());
}

TEST_F(DecisionRulesTest, AnAttemptIsOverWhereAllNodesOfItsAreLost) {
  Train(5);
  EXPECT_FALSE(IsOver(*DecisionInForce(records_.timeline.value), CallRoll()));
  records_.view.value.mutable_members(1)->set_lost(true);
  EXPECT_FALSE(IsOver(*DecisionInForce(records_.timeline.value), CallRoll()))
      << "its daemon may come back, and the job trains";
  records_.timeline.value.mutable_decision()->mutable_asked()->DeleteSubrange(0, 1);
  EXPECT_TRUE(IsOver(*DecisionInForce(records_.timeline.value), CallRoll()))
      << "all its ranks were there";
}

TEST_F(DecisionRulesTest, ANodeThatHasYetToHearOfADecisionSaysNothingOfItsRanks) {
  Train(5);
  Report(1).set_round_applied(0);
  Report(1).set_lives_round(0);
  Tell(1);
  EXPECT_FALSE(IsOver(*DecisionInForce(records_.timeline.value), CallRoll()));
}

// A restart inside of the processes: nobody has ended.
TEST_F(DecisionRulesTest, ThoseThatItWasMadeForMayAskAgainByAnyNumber) {
  Train(5);
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    AskFrom(slot, 6);
    Report(slot).mutable_asking(0)->set_pid(PidOf(slot, 5));
    Tell(slot);
  }
  EXPECT_TRUE(Next().write->timeline->closing());
}

TEST_F(DecisionRulesTest, RanksThatContradictEachOtherAreNotOneAttempt) {
  AskFrom(0, 1, 2);
  AskFrom(1, 1, 3);
  EXPECT_FALSE(Next().write);
  EXPECT_THAT(NextAtTheEnd().write->timeline->decision().status_message(),
              HasSubstr("rank 0 on node 0 is one of 2 ranks, rank 1 on node 1 one of 3"));
  AskFrom(1, 1, 2);
  Report(1).mutable_asking(0)->set_rank(0);
  Tell(1);
  EXPECT_THAT(NextAtTheEnd().write->timeline->decision().status_message(),
              HasSubstr("rank 0 asks on node 0 (pid 100) and on node 1 (pid 101)"));
}

TEST_F(DecisionRulesTest, RanksThatAskForDifferentStepsAreNotOneAttempt) {
  for (uint64_t slot = 0; slot < kNodes; ++slot) AskFrom(slot);
  Report(1).mutable_asking(0)->set_at_or_before(0);
  Tell(1);
  EXPECT_FALSE(Next().write);
  EXPECT_THAT(NextAtTheEnd().write->timeline->decision().status_message(),
              HasSubstr("rank 0 on node 0 restores any step, rank 1 on node 1 restores step 0 or "
                        "an earlier one"));
}

TEST_F(DecisionRulesTest, WhoHasNotHeardOfTheLastDecisionDoesNotAsk) {
  AskFrom(0);
  AskFrom(1);
  records_.timeline.value.mutable_decision()->set_round(1);
  EXPECT_TRUE(IsNone(Next()));
  Report(0).set_round_applied(1);
  Tell(0);
  EXPECT_EQ(WhoAsk(records_, CallRoll()).at(0).ranks.size(), 1U);
}

TEST_F(DecisionRulesTest, RanksThatDoNotAskInTimeAreNamed) {
  AskFrom(0);
  asked_since_[1] = now_;
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

// A store had been wiped, and nodes that knew of no job had begun one: a node that came then with
// the commit that it had kept gave it up.
TEST_F(DecisionRulesTest, TheFirstDecisionEndsTheEpochInWhichWhoKnowsOfAJobIsBelieved) {
  Close();
  Move move = Next();
  ASSERT_TRUE(move.write && move.write->seed);
  EXPECT_EQ(move.write->seed->epoch(), 2U);
  EXPECT_EQ(move.write->seed->store_id(), records_.store_id);
  records_.seed.value.set_epoch(2);
  move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_FALSE(move.write->seed);
}

TEST_F(DecisionRulesTest, SoDoesAFreshStart) {
  const auto order =
      OrderFreshStart(NodeSlot{0}, /*force=*/false, Timeline{2}, records_, CallRoll());
  ASSERT_TRUE(order.ok()) << order.status();
  ASSERT_TRUE(order->change.seed);
  EXPECT_EQ(order->change.seed->epoch(), 2U);
}

// By it two jobs of one name are told apart.
TEST_F(DecisionRulesTest, TheFirstTimelineIsNamedForGood) {
  Close();
  records_.timeline.value.clear_chain();
  Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  const uint64_t first = move.write->timeline->first_timeline();
  EXPECT_EQ(first, NewestTimeline(*move.write->timeline).value);
  records_.timeline.value = *move.write->timeline;
  const auto order =
      OrderFreshStart(NodeSlot{0}, /*force=*/true, Timeline{first + 1}, records_, CallRoll());
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->change.timeline->run(), first + 1);
  EXPECT_EQ(order->change.timeline->first_timeline(), first);
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
  TellBoard(board_, NodeSlot{1}, Report(1));
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
