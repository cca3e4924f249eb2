// What ranks leave on a node that train on another by now.

#include "smp/desk/moved_ranks.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

constexpr SlotNeeds kNeeds{.data_bytes = 4000, .extras_bytes = 100, .manifest_bytes = 500};
constexpr Rank kHere{0};
constexpr Rank kElsewhere{1};

class MovedRanksTest : public NodeStateFixture {
 protected:
  // Both have captured 1:8 and 1:10 here; 1:10 was restored and opened timeline 2, in which rank 1
  // trains elsewhere.
  MovedRanksTest() {
    InTurn([&] {
      OpenTimeline(*state_.record, Version{});
      MakeSlots();
      for (const Rank rank : {kHere, kElsewhere}) {
        UNREFT_CHECK(state_.slots->Provide(rank, kNeeds).ok());
      }
    });
    Settle();
    InTurn([&] {
      for (const Rank rank : {kHere, kElsewhere}) {
        for (const uint64_t step : {8, 10}) Seal(rank, At(1, step));
      }
      OpenTimeline(*state_.record, At(1, 10));
      Connect(kHere, 2);
    });
    moved_ = std::make_unique<MovedRanks>(state_);
  }

  static Version At(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }
  void Seal(Rank rank, Version version) {
    Slot* slot = state_.slots->Grant(rank, table_.Start(), 2, Attempt{1}, version.timeline);
    UNREFT_CHECK(slot != nullptr);
    slot->phase = SlotPhase::kSealed;
    slot->version = version;
  }
  void Commit(Version version) {
    InTurn([&] {
      state_.record->SetCommitted(version, 2);
      moved_->OnCommitted(version);
    });
    Settle();
  }
  size_t SlotsOf(Rank rank) { return state_.slots->OfRank(rank).size(); }
  bool Holds(Rank rank, Version version) {
    for (const Slot* slot : state_.slots->Sealed(version)) {
      if (slot->owner == rank) return true;
    }
    return false;
  }

  std::unique_ptr<MovedRanks> moved_;
};

TEST_F(MovedRanksTest, WhatTheyLeftIsTheStepBackVersionForOneCommitAndThenGone) {
  ASSERT_EQ(SlotsOf(kElsewhere), 3U);
  Commit(At(2, 12));
  EXPECT_TRUE(Holds(kElsewhere, At(1, 10)));
  EXPECT_EQ(SlotsOf(kElsewhere), 1U) << "what is older is of no use, and so are free slots";
  Commit(At(2, 14));
  EXPECT_EQ(SlotsOf(kElsewhere), 0U);
  EXPECT_EQ(SlotsOf(kHere), 3U);
  EXPECT_TRUE(Holds(kHere, At(1, 8)));
}

// Its trainer has just ended, and is perhaps about to come back.
TEST_F(MovedRanksTest, WhoCapturedTheCommittedVersionHereKeepsItsSlots) {
  InTurn([&] { Seal(kElsewhere, At(2, 12)); });
  Commit(At(2, 12));
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
  EXPECT_TRUE(Holds(kElsewhere, At(1, 8)));
}

TEST_F(MovedRanksTest, WhoIsPinnedStaysUntilAtLastItMayGo) {
  PinRecord pins;
  pins.add_pins()->set_timeline(1);
  pins.mutable_pins(0)->set_step(8);
  state_.pins = pins;
  for (const uint64_t step : {12, 14, 16}) Commit(At(2, step));
  EXPECT_EQ(SlotsOf(kElsewhere), 1U);
  EXPECT_TRUE(Holds(kElsewhere, At(1, 8)));
  state_.pins.emplace();
  Commit(At(2, 18));
  EXPECT_EQ(SlotsOf(kElsewhere), 0U);
}

TEST_F(MovedRanksTest, TrainersOfAnEarlierDaemonProcessAreWaitedFor) {
  state_.lives_before.push_back(table_.Start());
  for (const uint64_t step : {12, 14}) Commit(At(2, step));
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
  state_.lives_before.clear();
  Commit(At(2, 16));
  EXPECT_EQ(SlotsOf(kElsewhere), 0U);
}

TEST_F(MovedRanksTest, NothingGoesWhileADecisionIsMade) {
  state_.timeline_closed = true;
  for (const uint64_t step : {12, 14}) Commit(At(2, step));
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
}

// What they captured is restored by those that there are; what these capture is of other sizes.
TEST_F(MovedRanksTest, InAnotherWorldWhatWasCapturedStaysAndNoFreeSlot) {
  InTurn([&] {
    state_.record->SetCommitted(At(1, 10), 2);
    moved_->OnRestored(3);
  });
  Settle();
  for (const Rank rank : {kHere, kElsewhere}) {
    EXPECT_EQ(SlotsOf(rank), 2U);
    EXPECT_TRUE(Holds(rank, At(1, 10)));
  }
}

// The decision may come to a process of the daemon that was started when all trained already.
TEST_F(MovedRanksTest, WhoHasRegisteredInTheOtherWorldKeepsItsSlots) {
  InTurn([&] {
    state_.record->SetCommitted(At(1, 10), 2);
    state_.sessions.at(kHere)->registration = std::make_shared<Registration>();
    moved_->OnRestored(3);
  });
  Settle();
  EXPECT_EQ(SlotsOf(kHere), 3U);
  EXPECT_EQ(SlotsOf(kElsewhere), 2U);
}

// Three ranks came, registered and ended without a commit; of the two that come again nobody takes
// the memory that the third had.
TEST_F(MovedRanksTest, WhatAnAttemptBetweenWasGivenGoesWhenAsManyAsSavedComeAgain) {
  InTurn([&] {
    state_.record->SetCommitted(At(1, 10), 2);
    SlotNeeds needs = kNeeds;
    needs.world = 3;
    UNREFT_CHECK(state_.slots->Provide(Rank{2}, needs).ok());
  });
  Settle();
  ASSERT_EQ(SlotsOf(Rank{2}), 3U);
  InTurn([&] { moved_->OnRestored(2); });
  Settle();
  EXPECT_EQ(SlotsOf(Rank{2}), 0U);
  EXPECT_FALSE(state_.slots->Ranks().contains(Rank{2}));
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
}

TEST_F(MovedRanksTest, AmongAsManyRanksNothingGoesBeforeTheNextCommit) {
  InTurn([&] {
    state_.record->SetCommitted(At(1, 10), 2);
    moved_->OnRestored(2);
  });
  Settle();
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
}

// From where it asked is known, and that it is not on its way back.
TEST_F(MovedRanksTest, WhoAskedFromAnotherNodeHasNoFreeSlotsFromTheRestoreOn) {
  InTurn([&] {
    state_.record->SetCommitted(At(1, 10), 2);
    state_.decided = Timeline{2};
    state_.homes = {{kHere, NodeSlot{0}}, {kElsewhere, NodeSlot{1}}};
    Connect(kElsewhere, 2).registration = std::make_shared<Registration>();  // of a life before
    moved_->OnRestored(2);
  });
  Settle();
  EXPECT_EQ(SlotsOf(kHere), 3U);
  EXPECT_EQ(SlotsOf(kElsewhere), 2U);
  EXPECT_TRUE(Holds(kElsewhere, At(1, 8)));
  EXPECT_TRUE(Holds(kElsewhere, At(1, 10)));
  for (const uint64_t step : {12, 14}) Commit(At(2, step));
  EXPECT_EQ(SlotsOf(kElsewhere), 0U);
}

// There may be no memory for those of the ranks that there are, and so no commit.
TEST_F(MovedRanksTest, AfterAFreshStartThoseWhoAreNotThereHaveNoSlots) {
  InTurn([&] {
    for (Slot* slot : state_.slots->Sealed(At(1, 8))) state_.slots->Free(*slot);
    for (Slot* slot : state_.slots->Sealed(At(1, 10))) state_.slots->Free(*slot);
    moved_->OnFreshStart();
  });
  Settle();
  EXPECT_EQ(SlotsOf(kElsewhere), 0U);
  EXPECT_EQ(SlotsOf(kHere), 3U);
  EXPECT_EQ(state_.slots->Ranks(), std::set<Rank>{kHere});
}

TEST_F(MovedRanksTest, WhoWasRefusedSlotsHasNoNeedsEither) {
  InTurn([&] {
    EXPECT_TRUE(state_.slots->Provide(Rank{2}, kNeeds).ok());
    host_.set_bytes_max(host_.bytes_used());  // their pages cannot be had
  });
  Settle();
  EXPECT_EQ(SlotsOf(Rank{2}), 0U);
  EXPECT_TRUE(state_.slots->Ranks().contains(Rank{2}));
  Commit(At(2, 12));
  EXPECT_FALSE(state_.slots->Ranks().contains(Rank{2}));
}

TEST_F(MovedRanksTest, WhoComesBackHasSlotsAgain) {
  for (const uint64_t step : {12, 14}) Commit(At(2, step));
  InTurn([&] {
    Connect(kElsewhere, 2);
    EXPECT_TRUE(state_.slots->Provide(kElsewhere, kNeeds).ok());
  });
  Settle();
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
  Commit(At(2, 16));
  EXPECT_EQ(SlotsOf(kElsewhere), 3U);
}

}  // namespace
}  // namespace unreft::smp
