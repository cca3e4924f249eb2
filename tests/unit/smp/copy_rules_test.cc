// What is decided when nothing in memory can be restored: out of which durable copy the job goes
// on, and when it must not.
#include "base/node_header.h"
#include "smp/job/cluster_records.h"
#include "smp/job/copy_choice.h"
#include "smp/job/decision_rules.h"
#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr uint64_t kRun = 1;

class CopyRulesTest : public RulesFixture {
 protected:
  CopyRulesTest() {
    copies_ = RoundCopies(/*has_directory=*/true);
    TimelineRecord& timeline = records_.timeline.value;
    timeline.set_closing(true);
    timeline.set_round(1);
    timeline.set_attempt(1);
    timeline.set_world(kNodes);
    timeline.set_run(kRun);
    reading_.Follow(1);
    copies_.Follow(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      AskingRank& asking = *timeline.add_asked();
      asking.set_rank(slot);
      asking.set_slot(slot);
      Report(slot).set_round_closed(1);
      Tell(slot);
    }
  }

  // In a chain of timelines of which each stands on step 1 of the one before.
  static DurableCopy Copy(Version version, uint64_t run = kRun) {
    DurableCopy copy;
    copy.directory = fmt::format("/copies/{}-{}", version.timeline.value, version.step.value);
    copy.order.set_id(copy.directory);
    copy.order.set_run(run);
    copy.order.set_world(kNodes);
    SetVersion(version, copy.order);
    for (uint64_t number = run; number <= version.timeline.value; ++number) {
      CopyTimeline& timeline = *copy.order.add_chain();
      timeline.set_timeline(number);
      if (number == run) continue;
      timeline.set_parent_timeline(number - 1);
      timeline.set_parent_step(1);
    }
    return copy;
  }
  void NothingIsRecorded() {
    records_.timeline.value.clear_chain();
    records_.timeline.value.clear_run();
    for (uint64_t slot = 0; slot < kNodes; ++slot) Tell(slot);
  }
  void Find(std::vector<DurableCopy> copies) {
    copies_.OnSearching();
    copies_.OnFound(std::move(copies));
  }
  // The nodes have it, and have read it again.
  void Load(const DurableCopy& copy) {
    copies_.OnLoading(copy);
    copies_.OnLoaded(absl::OkStatus(), now_);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      Seal(slot, copy.version());
      reading_.End(RoundReading::LifeOf(NodeSlot{slot}, Report(slot)), copy.version());
      reading_.Keep(copy.version(), ManifestOf(slot));
    }
  }
  Move Next() { return Ask(&DecisionRule); }
  // Of a decision that fails.
  static std::string WhyOf(const Move& move) {
    if (!move.write || !move.write->timeline) return "";
    const DecisionRecord& decision = move.write->timeline->decision();
    if (decision.kind() != static_cast<uint32_t>(DecisionKind::kFailed)) return "";
    return decision.status_message();
  }
  static DecisionKind KindOf(const Move& move) {
    return static_cast<DecisionKind>(move.write->timeline->decision().kind());
  }
};

TEST_F(CopyRulesTest, TheyAreLookedForOnceNothingInMemoryIsWhole) {
  RecordCommit(At(1, 5));
  const Move move = Next();
  EXPECT_TRUE(move.search_copies && move.waits && !move.write);
  copies_.OnSearching();
  EXPECT_FALSE(Next().search_copies) << "once";
  EXPECT_TRUE(Next().waits);
}

// It began anew in silence, with copies of months in a directory that another daemon knew.
TEST_F(CopyRulesTest, ALeaderThatDoesNotKnowWhereCopiesAreDoesNotGuess) {
  copies_ = RoundCopies(/*has_directory=*/false);
  copies_.Follow(1);
  NothingIsRecorded();
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFresh) << "nobody does";
  Report(1).set_knows_copies(true);
  Tell(1);
  EXPECT_THAT(WhyOf(Next()), AllOf(HasSubstr("node 0, which leads, was started without"),
                                   HasSubstr("node 1 has")));
  RecordCommit(At(1, 5));
  EXPECT_THAT(WhyOf(Next()), HasSubstr("node 1 has"));
}

TEST_F(CopyRulesTest, WhatMemoryHasIsRestoredAndNothingIsLookedFor) {
  RecordCommit(At(1, 5));
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Seal(slot, At(1, 5));
    reading_.End(RoundReading::LifeOf(NodeSlot{slot}, Report(slot)), At(1, 5));
  }
  const Move move = Next();
  ASSERT_TRUE(move.write);
  EXPECT_EQ(KindOf(move), DecisionKind::kRestored);
  EXPECT_EQ(move.write->timeline->decision().copy(), "");
}

TEST_F(CopyRulesTest, TheNewestOnTheTimelinesIsLoadedWhereItsRanksAsk) {
  RecordCommit(At(1, 5));
  Find({Copy(At(9, 8), 9), Copy(At(1, 3)), Copy(At(1, 4)), Copy(At(1, 2))});
  const Move move = Next();
  EXPECT_TRUE(move.waits);
  ASSERT_TRUE(move.load_copy);
  EXPECT_EQ(move.load_copy->copy.version(), At(1, 4));
  EXPECT_THAT(move.load_copy->homes, ElementsAre(Pair(NodeSlot{0}, ElementsAre(Rank{0})),
                                                 Pair(NodeSlot{1}, ElementsAre(Rank{1}))));
}

// By nobody it would never be loaded, and nothing be decided.
TEST_F(CopyRulesTest, NothingIsLoadedWhileAllMembersAreLost) {
  RecordCommit(At(1, 5));
  Find({Copy(At(1, 4))});
  for (uint64_t slot = 0; slot < kNodes; ++slot) Lose(slot);
  const Move move = Next();
  EXPECT_FALSE(move.load_copy);
  EXPECT_TRUE(move.waits && !move.write);
}

TEST_F(CopyRulesTest, RanksOfALargerWorldAreLoadedEvenly) {
  RecordCommit(At(1, 5));
  DurableCopy copy = Copy(At(1, 4));
  copy.order.set_world(5);
  Find({copy});
  EXPECT_THAT(Next().load_copy->homes,
              ElementsAre(Pair(NodeSlot{0}, ElementsAre(Rank{0}, Rank{2}, Rank{4})),
                          Pair(NodeSlot{1}, ElementsAre(Rank{1}, Rank{3}))));
}

// Nodes that were away while the others began from it know the job by that.
TEST_F(CopyRulesTest, TheJobIsTheOneThatTheCopyIsOf) {
  NothingIsRecorded();
  DurableCopy copy = Copy(At(1, 4));
  copy.order.set_first_timeline(kRun);
  Find({copy});
  Load(copy);
  Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  EXPECT_EQ(move.write->timeline->first_timeline(), kRun);
  records_.timeline.value.set_first_timeline(77);
  move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  EXPECT_EQ(move.write->timeline->first_timeline(), 77U) << "who has found that follows no other";
}

TEST_F(CopyRulesTest, WhatIsLoadedIsDecidedOnceTheNodesReportIt) {
  RecordCommit(At(1, 5));
  Find({Copy(At(1, 4))});
  copies_.OnLoading(Copy(At(1, 4)));
  EXPECT_TRUE(Next().waits);
  copies_.OnLoaded(absl::OkStatus(), now_);
  EXPECT_TRUE(Next().waits && !Next().write && Next().wake);
  Load(Copy(At(1, 4)));
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(KindOf(move), DecisionKind::kRestored);
  EXPECT_EQ(move.write->timeline->decision().copy(), "/copies/1-4");
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 4));
  EXPECT_EQ(NewestTimeline(*move.write->timeline), Timeline{2});
  EXPECT_EQ(move.write->timeline->run(), kRun);
  EXPECT_THAT(move.say.back().text,
              AllOf(HasSubstr("/copies/1-4"), HasSubstr("what came after step 4 is lost")));
}

TEST_F(CopyRulesTest, WhatNoNodeReportsInTimeFailsTheRound) {
  RecordCommit(At(1, 5));
  Find({Copy(At(1, 4))});
  copies_.OnLoading(Copy(At(1, 4)));
  copies_.OnLoaded(absl::OkStatus(), now_);
  Seal(0, At(1, 4));
  now_ += options_.verify_timeout;
  EXPECT_THAT(WhyOf(Next()), AllOf(HasSubstr("/copies/1-4"), HasSubstr("lacks rank 1")));
}

TEST_F(CopyRulesTest, PastADamagedOneTheOneBeforeIsTaken) {
  RecordCommit(At(1, 5));
  Find({Copy(At(1, 4)), Copy(At(1, 3))});
  copies_.OnLoading(Copy(At(1, 4)));
  copies_.OnLoaded(absl::DataLossError("block 3 has CRC 1, needed 2"), now_);
  EXPECT_EQ(Next().load_copy->copy.version(), At(1, 3));
  copies_.OnLoading(Copy(At(1, 3)));
  copies_.OnLoaded(absl::DataLossError("file 2 is not there"), now_);
  EXPECT_THAT(WhyOf(Next()), AllOf(HasSubstr("unrecoverable"), HasSubstr("file 2 is not there")));
}

TEST_F(CopyRulesTest, AnotherFailureEndsTheRoundSinceTheNextMayDo) {
  RecordCommit(At(1, 5));
  Find({Copy(At(1, 4)), Copy(At(1, 3))});
  copies_.OnLoading(Copy(At(1, 4)));
  copies_.OnLoaded(absl::UnavailableError("node 1: it does not answer"), now_);
  EXPECT_THAT(WhyOf(Next()), HasSubstr("node 1: it does not answer"));
}

TEST_F(CopyRulesTest, ACopyOfWhatWasGivenUpIsNotRestored) {
  RecordCommit(At(1, 5));
  records_.abandoned.value.set_timeline(1);
  records_.abandoned.value.set_after_step(2);
  records_.abandoned.value.set_through_step(4);
  Find({Copy(At(1, 4)), Copy(At(1, 2))});
  EXPECT_EQ(Next().load_copy->copy.version(), At(1, 2));
}

TEST_F(CopyRulesTest, RanksThatAskForAnEarlierStepGetNoLaterOne) {
  RecordCommit(At(1, 5));
  for (AskingRank& asking : *records_.timeline.value.mutable_asked()) asking.set_at_or_before(3);
  Find({Copy(At(1, 4)), Copy(At(1, 2))});
  EXPECT_EQ(Next().load_copy->copy.version(), At(1, 2));
}

TEST_F(CopyRulesTest, WithoutAnyOfTheTimelinesItIsSaidThatOneHasLooked) {
  RecordCommit(At(1, 5));
  Find({Copy(At(9, 8), 9)});
  EXPECT_THAT(WhyOf(Next()),
              AllOf(HasSubstr("unrecoverable"), HasSubstr("none of 1 durable copies")));
}

// --- nothing is recorded ---

TEST_F(CopyRulesTest, WithoutRecordsTheNewestOfTheRunGoesOnAfterItsTimelines) {
  NothingIsRecorded();
  Find({Copy(At(2, 3)), Copy(At(3, 2)), Copy(At(1, 9))});
  const DurableCopy chosen = Next().load_copy->copy;
  EXPECT_EQ(chosen.version(), At(3, 2));
  Load(chosen);
  const Move move = Next();
  ASSERT_TRUE(move.write);
  const TimelineRecord& timeline = *move.write->timeline;
  EXPECT_EQ(timeline.run(), kRun);
  ASSERT_EQ(timeline.chain_size(), 4);
  EXPECT_EQ(timeline.chain(2).timeline(), 3U);
  EXPECT_GT(NewestTimeline(timeline), Timeline{3});
  EXPECT_EQ(timeline.chain(3).parent_timeline(), 3U);
  EXPECT_EQ(timeline.chain(3).parent_step(), 2U);
  EXPECT_THAT(move.say.back().text, HasSubstr("no commit of the job is recorded"));
}

TEST_F(CopyRulesTest, WithoutRecordsCopiesOfTwoRunsAreRefusedWithTheList) {
  NothingIsRecorded();
  Find({Copy(At(2, 3)), Copy(At(9, 8), 9)});
  EXPECT_THAT(WhyOf(Next()), AllOf(HasSubstr("/copies/2-3"), HasSubstr("/copies/9-8"),
                                   HasSubstr("unreft fresh-start")));
}

TEST_F(CopyRulesTest, WithoutRecordsAndCopiesTheJobBegins) {
  NothingIsRecorded();
  Find({});
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFresh);
}

TEST_F(CopyRulesTest, WithoutRecordsNothingBeginsBesideAStoreThatCannotBeReadOrADamagedCopy) {
  NothingIsRecorded();
  copies_.OnSearching();
  copies_.OnFound(absl::UnavailableError("/copies is not there"));
  EXPECT_THAT(WhyOf(Next()),
              AllOf(HasSubstr("/copies is not there"), HasSubstr("unreft fresh-start")));
  copies_.Follow(2);
  Find({Copy(At(2, 3))});
  copies_.OnLoading(Copy(At(2, 3)));
  copies_.OnLoaded(absl::DataLossError("block 3 has CRC 1, needed 2"), now_);
  EXPECT_THAT(WhyOf(Next()), HasSubstr("block 3 has CRC 1"));
}

TEST_F(CopyRulesTest, WithoutRecordsNothingBeginsBesideCopiesThatAreTooNewOrCannotBeRead) {
  NothingIsRecorded();
  for (AskingRank& asking : *records_.timeline.value.mutable_asked()) asking.set_at_or_before(1);
  Find({Copy(At(1, 4))});
  EXPECT_THAT(WhyOf(Next()), HasSubstr("none of 1 durable copies"));
  copies_.Follow(2);
  DurableCopy unreadable;
  unreadable.directory = "/copies/rotten";
  Find({unreadable});
  EXPECT_THAT(WhyOf(Next()), HasSubstr("/copies/rotten cannot be read"));
}

// What the newest copy's timelines have given up is not restored in its place.
TEST_F(CopyRulesTest, WithoutRecordsPastADamagedOneOnlyWhatItStandsOnIsTaken) {
  NothingIsRecorded();
  Find({Copy(At(3, 2)), Copy(At(2, 9)), Copy(At(2, 1))});
  copies_.OnLoading(Copy(At(3, 2)));
  copies_.OnLoaded(absl::DataLossError("block 3 has CRC 1, needed 2"), now_);
  EXPECT_EQ(Next().load_copy->copy.version(), At(2, 1));
}

TEST_F(CopyRulesTest, RanksThatAskForLessThanMemoryHasAreToldSo) {
  RecordCommit(At(1, 5));
  for (uint64_t slot = 0; slot < kNodes; ++slot) Seal(slot, At(1, 5));
  for (AskingRank& asking : *records_.timeline.value.mutable_asked()) asking.set_at_or_before(3);
  const Move move = Next();
  EXPECT_FALSE(move.search_copies);
  EXPECT_THAT(WhyOf(move), HasSubstr("step 3"));
}

TEST_F(CopyRulesTest, AfterAFreshStartCopiesOfOtherRunsDoNotCount) {
  records_.commit.value.set_timeline(1);  // as the order leaves it
  EXPECT_TRUE(Next().search_copies);
  Find({Copy(At(9, 8), 9)});
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFresh);
}

TEST_F(CopyRulesTest, AStoreThatCannotBeReadIsInTheWayOnlyOfAStartThatNobodyOrdered) {
  copies_.OnSearching();
  copies_.OnFound(absl::UnavailableError("/mnt/ckpt is not mounted"));
  EXPECT_THAT(WhyOf(Next()), HasSubstr("not mounted"));
  records_.commit.value.set_timeline(NewestTimeline(records_.timeline.value).value);
  EXPECT_EQ(KindOf(Next()), DecisionKind::kFresh);
}

// --- the store went back, with all memory gone ---

TEST_F(CopyRulesTest, WhereNoCommitIsRecordedACopyOfTheRunShowsThatThereWasOne) {
  Find({Copy(At(2, 3)), Copy(At(9, 8), 9)});
  const DurableCopy chosen = Next().load_copy->copy;
  EXPECT_EQ(chosen.version(), At(2, 3));
  Load(chosen);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(2, 3));
  const TimelineRecord& timeline = *move.write->timeline;
  EXPECT_EQ(timeline.run(), kRun);
  ASSERT_EQ(timeline.chain_size(), 3);
  EXPECT_EQ(timeline.chain(1).timeline(), 2U);
  EXPECT_EQ(timeline.chain(2).parent_timeline(), 2U);
  EXPECT_GT(NewestTimeline(timeline), Timeline{2});
}

// Its run began when nothing was committed in the one that is recorded.
TEST_F(CopyRulesTest, WhereNothingWasEverCommittedACopyOfALaterRunGoesOn) {
  Find({Copy(At(9, 8), 9)});
  const DurableCopy chosen = Next().load_copy->copy;
  EXPECT_EQ(chosen.version(), At(9, 8));
  Load(chosen);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  EXPECT_EQ(move.write->timeline->run(), 9U);
  EXPECT_EQ(move.write->timeline->chain(0).timeline(), 9U);
  EXPECT_GT(NumberOf(NewestTimeline(*move.write->timeline)), 9U);
}

TEST_F(CopyRulesTest, WhereNothingWasEverCommittedCopiesOfTwoOtherRunsAreRefusedWithTheList) {
  Find({Copy(At(9, 8), 9), Copy(At(5, 7), 5)});
  EXPECT_THAT(WhyOf(Next()), AllOf(HasSubstr("of several runs"), HasSubstr("/copies/9-8 (run 9"),
                                   HasSubstr("/copies/5-7 (run 5")));
}

TEST_F(CopyRulesTest, WhereNothingWasEverCommittedNothingBeginsBesideACopyThatCannotBeRead) {
  DurableCopy unreadable;
  unreadable.directory = "/copies/rotten";
  Find({unreadable});
  EXPECT_THAT(WhyOf(Next()), HasSubstr("/copies/rotten cannot be read"));
}

TEST_F(CopyRulesTest, TheNextTimelineIsLaterThanTheRecordedOnesToo) {
  records_.timeline.value.mutable_chain(0)->set_timeline(7);
  records_.timeline.value.set_run(7);
  for (uint64_t slot = 0; slot < kNodes; ++slot) Tell(slot);
  Find({Copy(At(2, 3))});
  const DurableCopy chosen = Next().load_copy->copy;
  Load(chosen);
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->timeline);
  EXPECT_GT(NumberOf(NewestTimeline(*move.write->timeline)), 7U);
}

TEST_F(CopyRulesTest, NothingBeginsAnewBesideADamagedCopyOfTheRun) {
  Find({Copy(At(2, 3)), Copy(At(9, 8), 9)});
  copies_.OnLoading(Copy(At(2, 3)));
  copies_.OnLoaded(absl::DataLossError("block 3 has CRC 1, needed 2"), now_);
  EXPECT_THAT(WhyOf(Next()), HasSubstr("block 3 has CRC 1"));
}

TEST_F(CopyRulesTest, ACopyMayBeOfATimelineThatWasOpenedAfterWhatIsRecorded) {
  RecordCommit(At(1, 1));
  Find({Copy(At(2, 3)), Copy(At(1, 1))});
  EXPECT_EQ(Next().load_copy->copy.version(), At(2, 3));
}

// Of many timelines the newest ones alone are kept, in the record as in the copy.
TEST_F(CopyRulesTest, ACopyOfALongLivedJobMayBeOfATimelineThatWasOpenedAfterWhatIsRecorded) {
  const auto trimmed = [](uint64_t newest, uint64_t first_parent_step = 1) {
    DurableCopy copy = Copy(At(newest, 9));
    auto& chain = *copy.order.mutable_chain();
    chain.DeleteSubrange(0, chain.size() - static_cast<int>(kDecisionsKept));
    chain[0].set_parent_step(first_parent_step);
    return copy;
  };
  constexpr uint64_t kRecorded = kDecisionsKept + 7;
  TimelineRecord& timeline = records_.timeline.value;
  SetChain(trimmed(kRecorded).chain(), timeline);
  RecordCommit(At(kRecorded, 1));
  for (uint64_t slot = 0; slot < kNodes; ++slot) Tell(slot);
  Find({trimmed(kRecorded + 2), trimmed(kRecorded)});
  EXPECT_EQ(Next().load_copy->copy.version(), At(kRecorded + 2, 9));
  const auto find_only = [this](const DurableCopy& copy) {
    copies_ = RoundCopies(/*has_directory=*/true);
    copies_.Follow(1);
    Find({copy});
  };
  find_only(trimmed(kRecorded + 2, /*first_parent_step=*/2));
  EXPECT_FALSE(Next().load_copy) << "its oldest one is another";
  find_only(trimmed(kRecorded + 2 * kDecisionsKept));
  EXPECT_FALSE(Next().load_copy) << "nothing says what it stands on";
}

TEST_F(CopyRulesTest, ACopyOfATimelineBesideThoseThatAreRecordedIsNone) {
  RecordCommit(At(1, 1));
  TimelineEntry& other = *records_.timeline.value.add_chain();
  other.set_timeline(3);  // opened on the same version as the copies' timeline 2
  other.set_parent_timeline(1);
  other.set_parent_step(1);
  for (uint64_t slot = 0; slot < kNodes; ++slot) Tell(slot);
  Find({Copy(At(2, 3)), Copy(At(1, 1))});
  EXPECT_EQ(Next().load_copy->copy.version(), At(1, 1));
}

}  // namespace
}  // namespace unreft::smp
