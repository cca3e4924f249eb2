// Which slot a rank is offered, and when.

#include "smp/capture/granter.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

constexpr Rank kRank{0};

class GranterTest : public NodeStateFixture {
 protected:
  GranterTest() {
    options_.slots_per_rank = 2;
    InTurn([&] {
      MakeSlots();
      granter_ = std::make_unique<Granter>(state_);
      session_ = &Connect(kRank, 1);
      session_->Attach(&channel_);
      session_->timeline = OpenTimeline(*state_.record, Version{});
      ASSERT_TRUE(session_->OpenControl(state_.prefix).ok());
      ASSERT_TRUE(state_.slots->Provide(kRank, {1 << 12, 1 << 12, 1 << 12}).ok());
    });
    Settle();
  }

  GrantWord OnPage() const { return GrantWord::Decode(session_->control()->grant.load()); }
  // As the trainer does.
  void Claim() {
    GrantWord word = OnPage();
    word.state = GrantState::kClaimed;
    session_->control()->grant.store(word.Encode());
  }
  Slot* Offer() {
    InTurn([&] { granter_->EnsureGrant(*session_); });
    const GrantWord word = OnPage();
    if (word.state != GrantState::kGranted) return nullptr;
    return granter_->SlotOf(*session_, word.slot, word.generation);
  }
  // The slot that is offered holds a version from now on.
  void Seal(uint64_t step, bool committed) {
    Slot* slot = Offer();
    ASSERT_NE(slot, nullptr) << "no slot for step " << step;
    session_->control()->grant.store(GrantWord{}.Encode());
    slot->phase = SlotPhase::kSealed;
    slot->version = {session_->timeline, Step{step}};
    if (committed) InTurn([&] { state_.record->SetCommitted(slot->version, 1); });
  }

  void Rot(uint64_t step) {
    InTurn([&] {
      Slot* slot = state_.slots->Sealed({session_->timeline, Step{step}}).at(0);
      state_.slots->Quarantine(*slot, "block 1 has another CRC");
      slot->reusable = true;
    });
  }

  std::unique_ptr<Granter> granter_;
  RecordingChannel channel_;
  RankSession* session_ = nullptr;
};

TEST_F(GranterTest, AnOfferThatIsTakenBackIsFree) {
  Slot* slot = Offer();
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(slot->phase, SlotPhase::kGranted);
  EXPECT_EQ(Offer(), slot) << "one at a time";
  InTurn([&] { granter_->Revoke(*session_); });
  EXPECT_EQ(OnPage().state, GrantState::kNone);
  EXPECT_EQ(slot->phase, SlotPhase::kFree);
}

TEST_F(GranterTest, WhatTheTrainerHasClaimedStaysItsOwn) {
  Slot* slot = Offer();
  ASSERT_NE(slot, nullptr);
  Claim();
  InTurn([&] { granter_->Revoke(*session_); });
  EXPECT_EQ(slot->phase, SlotPhase::kGranted) << "its doorbell is still to come";
  EXPECT_EQ(Offer(), nullptr);
  slot->phase = SlotPhase::kCapturing;
  Slot* next = Offer();
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next, slot);
}

TEST_F(GranterTest, NothingIsOfferedForATimelineThatIsClosedOrOver) {
  state_.timeline_closed = true;
  EXPECT_EQ(Offer(), nullptr);
  state_.timeline_closed = false;
  InTurn([&] { OpenTimeline(*state_.record, Version{}); });
  EXPECT_EQ(Offer(), nullptr);
  session_->timeline = state_.record->chain().newest();
  EXPECT_NE(Offer(), nullptr);
}

// Step 1 is the step-back version of step 2, until a snapshot was skipped for want of its slot.
TEST_F(GranterTest, TheStepBackVersionGivesWayAfterASkip) {
  state_.pins.emplace();
  state_.options.slots_per_rank = 3;
  InTurn([&] { ASSERT_TRUE(state_.slots->Provide(kRank, {1 << 12, 1 << 12, 1 << 12}).ok()); });
  Settle();
  Seal(1, true);
  Seal(2, true);
  Seal(3, false);
  EXPECT_EQ(Offer(), nullptr);
  Granter::HurryAfterSkip(*session_);
  EXPECT_NE(Offer(), nullptr);
  EXPECT_TRUE(state_.slots->Sealed({session_->timeline, Step{1}}).empty());
}

// The rank had no slot for a next version, and one that rots is used again only once a newer
// version is committed: nothing ever was.
TEST_F(GranterTest, WhatRottedOfAVersionThatIsGivenUpGivesWay) {
  state_.pins.emplace();
  Seal(1, true);
  Seal(2, false);
  Rot(2);
  EXPECT_EQ(Offer(), nullptr) << "it may be made good yet";
  InTurn([&] { granter_->OnCaptureFrom({session_->timeline, Step{3}}); });
  EXPECT_NE(Offer(), nullptr);
}

// The decision went back behind it.
TEST_F(GranterTest, WhatRottedOfAVersionThatIsOverGivesWay) {
  state_.pins.emplace();
  Seal(1, true);
  Seal(2, false);
  Rot(2);
  const Version restored{session_->timeline, Step{1}};
  InTurn([&] { session_->timeline = OpenTimeline(*state_.record, restored); });
  EXPECT_NE(Offer(), nullptr);
}

// It rotted after the commit, which uses what has rotted before it again.
TEST_F(GranterTest, WhatRottedAndIsOlderThanTheCommitGivesWay) {
  state_.pins.emplace();
  Seal(1, true);
  Seal(2, true);
  Rot(1);
  EXPECT_NE(Offer(), nullptr);
}

// It was decoded from the group into another slot.
TEST_F(GranterTest, WhatRottedAndWasRebuiltGivesWay) {
  state_.pins.emplace();
  Seal(1, true);
  Rot(1);
  Seal(1, true);
  EXPECT_NE(Offer(), nullptr);
}

TEST_F(GranterTest, ABoundOnStepsIsOnThePagesOfItsTimelineAlone) {
  RankSession* other = nullptr;
  InTurn([&] {
    other = &Connect(Rank{1}, 2);
    other->timeline = Timeline{session_->timeline.value + 1};
    ASSERT_TRUE(other->OpenControl(state_.prefix).ok());
    granter_->OnCaptureFrom({session_->timeline, Step{9}});
  });
  EXPECT_EQ(session_->control()->capture_from.load(), 9U);
  EXPECT_EQ(other->control()->capture_from.load(), 0U);
}

}  // namespace
}  // namespace unreft::smp
