// An operator's order that an older version is restored next (docs/protocol.md, rule 30).
#include "smp/job/rewind.h"

#include "smp/job/decision_rules.h"
#include "smp/job/pin_rules.h"
#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 1:4 and 1:5 are whole, and 1:5 is committed.
class RewindTest : public RulesFixture {
 protected:
  RewindTest() {
    options_.slots_per_rank = 3;
    Protect(At(1, 4));
    Protect(At(1, 5));
    RecordCommit(At(1, 5));
  }
  absl::StatusOr<meta::JobChange> Order(uint64_t step) {
    RewindRequest request;
    request.set_step(step);
    return OrderRewind(request, records_, CallRoll(), options_);
  }
  absl::StatusOr<meta::JobChange> Cancel() {
    RewindRequest request;
    request.set_cancel(true);
    return OrderRewind(request, records_, CallRoll(), options_);
  }
  void Write(const meta::JobChange& change) {
    records_.timeline.value = *change.timeline;
    records_.pins.value = *change.pins;
  }
  void AskAtOrBefore(uint64_t step) {
    for (uint64_t rank = 0; rank < kNodes; ++rank) {
      AskingRank& asking = *records_.timeline.value.add_asked();
      asking.set_rank(rank);
      asking.set_at_or_before(step);
    }
  }
  // All ranks ask, and all nodes have stopped and read that version again.
  Move Decide(Version read) {
    TimelineRecord& timeline = records_.timeline.value;
    timeline.set_closing(true);
    timeline.set_round(1);
    timeline.set_world(kNodes);
    reading_.Follow(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      Report(slot).set_round_closed(1);
      Tell(slot);
      reading_.End(RoundReading::LifeOf(NodeSlot{slot}, Report(slot)), read);
      reading_.Keep(read, ManifestOf(slot));
    }
    return Ask(&DecisionRule);
  }
};

TEST_F(RewindTest, WhatIsWholeIsNamedNewestFirst) {
  const RewindReply can = DescribeRewind(records_, CallRoll());
  ASSERT_EQ(can.versions_size(), 2);
  EXPECT_EQ(VersionOf(can.versions(0)), At(1, 5));
  EXPECT_TRUE(can.versions(0).committed());
  EXPECT_EQ(VersionOf(can.versions(1)), At(1, 4));
  EXPECT_FALSE(can.versions(1).committed());
  EXPECT_EQ(can.order().timeline(), 0U);
}

TEST_F(RewindTest, AnOrderPinsItsVersionInTheSameTxn) {
  const auto change = Order(4);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(OrderedVersion(*change->timeline), At(1, 4));
  ASSERT_EQ(change->pins->pins_size(), 1);
  EXPECT_EQ(VersionOf(change->pins->pins(0)), At(1, 4));
  Write(*change);
  EXPECT_THAT(DescribeRewind(records_, CallRoll()).versions(1).pinned_by(),
              ElementsAre(std::string(kRewindOwner)));
  const auto another = Order(5);  // in its place
  ASSERT_TRUE(another.ok());
  EXPECT_EQ(OrderedVersion(*another->timeline), At(1, 5));
  EXPECT_EQ(another->pins->pins_size(), 1);
}

TEST_F(RewindTest, WhatIsNotThereCannotBeOrdered) {
  const absl::Status status = Order(3).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("those that are: 1:5, 1:4"));
  EXPECT_TRUE(absl::IsNotFound(Cancel().status()));
}

// Nothing could be captured, while the job trains on.
TEST_F(RewindTest, RanksThatTrainKeepASlotToCaptureIn) {
  options_.slots_per_rank = 2;
  Report(0).set_ranks(1);
  Tell(0);
  const absl::Status status = Order(4).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 slots of each rank needed while the job "
                                                       "trains, found 2"));
  options_.pins = 1;
  EXPECT_TRUE(Order(4).ok());
  options_.pins = 0;
  Report(0).set_ranks(0);
  Tell(0);
  EXPECT_TRUE(Order(4).ok()) << "nothing is captured";
}

TEST_F(RewindTest, TheNextDecisionRestoresItAndEndsTheOrder) {
  Write(*Order(4));
  const Move move = Decide(At(1, 4));
  ASSERT_TRUE(move.write && move.write->commit && move.write->pins);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 4));
  EXPECT_FALSE(OrderedVersion(*move.write->timeline));
  EXPECT_FALSE(IsKeptForRewind(*move.write->pins));
}

TEST_F(RewindTest, NothingElseIsRestoredInItsPlace) {
  Write(*Order(4));
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Holding(slot, At(1, 4)).clear_sealed();
    Holding(slot, At(1, 4)).set_guarded(false);
    Tell(slot);
  }
  const Move move = Decide(At(1, 5));
  ASSERT_TRUE(move.write);
  const TimelineRecord& timeline = *move.write->timeline;
  EXPECT_EQ(timeline.decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_THAT(timeline.decision().status_message(),
              HasSubstr("version 1:4 is to be restored, by an order of 'unreft rewind'"));
  EXPECT_EQ(OrderedVersion(timeline), At(1, 4)) << "it stands until it is taken back";
  records_.timeline.value = timeline;
  Write(*Cancel());
  EXPECT_EQ(VersionOf(*Decide(At(1, 5)).write->commit), At(1, 5));
}

TEST_F(RewindTest, AnOrderEndsWithItsPin) {
  Write(*Order(4));
  pins_over_ = {records_.pins.value.pins(0).number()};
  const Move move = Ask(&PinRule);
  ASSERT_TRUE(move.write && move.write->pins && move.write->timeline);
  EXPECT_FALSE(OrderedVersion(*move.write->timeline));
  EXPECT_TRUE(move.write->pins->pins().empty());
}

TEST_F(RewindTest, RanksGetTheNewestOfTheStepsThatTheyAskFor) {
  AskAtOrBefore(4);
  const Move move = Decide(At(1, 4));
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 4));
  EXPECT_EQ(move.write->timeline->decision().asked(0).at_or_before(), 4U);
}

TEST_F(RewindTest, RanksThatAskForALaterStepGetTheNewest) {
  AskAtOrBefore(70);
  const Move move = Decide(At(1, 5));
  ASSERT_TRUE(move.write && move.write->commit);
  EXPECT_EQ(VersionOf(*move.write->commit), At(1, 5));
}

// Not what is newer, and no fresh start.
TEST_F(RewindTest, WhereOnlyNewerStepsAreWholeRanksAreToldOfThese) {
  AskAtOrBefore(3);
  const Move move = Decide(At(1, 5));
  ASSERT_TRUE(move.write);
  const DecisionRecord& decision = move.write->timeline->decision();
  EXPECT_EQ(decision.kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_EQ(decision.status_message(),
            "no version of step 3 or an earlier one is whole; those that are: 1:5, 1:4");
}

TEST_F(RewindTest, WhereNothingWasEverSavedThereIsNothingNewer) {
  for (uint64_t slot = 0; slot < kNodes; ++slot) {
    Report(slot).clear_versions();
    Tell(slot);
  }
  records_.commit.value.Clear();
  AskAtOrBefore(3);
  const Move move = Decide(At(1, 5));
  ASSERT_TRUE(move.write);
  EXPECT_EQ(move.write->timeline->decision().kind(), static_cast<uint32_t>(DecisionKind::kFresh));
}

TEST_F(RewindTest, AnOrderForALaterStepThanRanksAskForIsSaid) {
  Write(*Order(5));
  AskAtOrBefore(4);
  const Move move = Decide(At(1, 5));
  ASSERT_TRUE(move.write);
  const DecisionRecord& decision = move.write->timeline->decision();
  EXPECT_EQ(decision.kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_THAT(decision.status_message(),
              HasSubstr("the ranks restore step 4 or an earlier one, and version 1:5"));
  EXPECT_TRUE(OrderedVersion(*move.write->timeline)) << "it stands";
}

}  // namespace
}  // namespace unreft::smp
