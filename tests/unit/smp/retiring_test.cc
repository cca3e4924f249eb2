// Which versions a node still needs, and which it retires for the next.

#include <gmock/gmock.h>

#include "tests/unit/smp/capture_desk_fixture.h"

namespace unreft::smp {
namespace {

class RetireTest : public CaptureDeskTest {
 protected:
  // Versions 1 to `steps`, of which the last is committed, in slots of this rank.
  void Capture(uint64_t steps) {
    state_.options.pins = 1;
    InTurn([&] { Register(); });
    Settle();
    for (uint64_t step = 1; step <= steps; ++step) {
      InTurn([&] {
        const GrantWord word = GrantWord::Decode(session_->control()->grant.load());
        UNREFT_CHECK(word.state == GrantState::kGranted, "no slot for step {}", step);
        Slot& slot = *state_.slots->Find(word.slot);
        slot.phase = SlotPhase::kSealed;
        slot.version = {session_->timeline, Step{step}};
        session_->control()->grant.store(GrantWord{}.Encode());
        state_.record->SetCommitted(slot.version, 1);
        desk_->RunRules();
      });
    }
  }
  bool Holds(uint64_t step) {
    return !state_.slots->Sealed({session_->timeline, Step{step}}).empty();
  }
};

TEST_F(RetireTest, WhatIsPinnedStaysHoweverManyAreCommittedSince) {
  PinRecord pins;
  pins.add_pins()->set_timeline(session_->timeline.value);
  pins.mutable_pins(0)->set_step(2);
  state_.pins = pins;
  Capture(20);
  EXPECT_TRUE(Holds(2));
  EXPECT_FALSE(Holds(1));
  EXPECT_FALSE(Holds(3));
  EXPECT_TRUE(Holds(20));
  EXPECT_TRUE(Holds(19)) << "the step-back version has a slot of its own";
}

TEST_F(RetireTest, NothingIsRetiredBeforeItIsKnownWhatIsPinned) {
  Capture(3);
  InTurn([&] { desk_->RunRules(); });
  EXPECT_EQ(GrantWord::Decode(session_->control()->grant.load()).state, GrantState::kGranted)
      << "the fourth slot is free";
  InTurn([&] {
    Slot& slot = *state_.slots->Find(GrantWord::Decode(session_->control()->grant.load()).slot);
    slot.phase = SlotPhase::kSealed;
    slot.version = {session_->timeline, Step{4}};
    session_->control()->grant.store(GrantWord{}.Encode());
    state_.record->SetCommitted(slot.version, 1);
    desk_->RunRules();
  });
  for (const uint64_t step : {1, 2, 3, 4}) EXPECT_TRUE(Holds(step));
  InTurn([&] {
    state_.pins.emplace();
    desk_->RunRules();
  });
  EXPECT_FALSE(Holds(1));
}

}  // namespace
}  // namespace unreft::smp
