// Which pins the leader writes, and what it answers.
#include "smp/job/pin_rules.h"

#include "tests/unit/smp/rules_fixture.h"

namespace unreft::smp {
namespace {

class PinRulesTest : public RulesFixture {
 protected:
  PinRulesTest() {
    options_.pins = 1;
    request_.set_owner("export");
    request_.set_for_ms(1000);
  }
  Move Next() { return Ask(&PinRule); }

  PinRequest request_;
};

TEST_F(PinRulesTest, WithoutARequestNothingIsWritten) { EXPECT_TRUE(IsNone(Next())); }

TEST_F(PinRulesTest, APinIsOfTheVersionThatIsCommitted) {
  RecordCommit(At(1, 5));
  pin_asked_ = &request_;
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->pins && move.pin_answer && move.pin_answer->ok());
  EXPECT_EQ(VersionOf(move.write->pins->pins(0)), At(1, 5));
  EXPECT_EQ(VersionOf((*move.pin_answer)->pins(0)), At(1, 5));
}

TEST_F(PinRulesTest, WhatCannotBePinnedIsAnsweredWithoutAWrite) {
  pin_asked_ = &request_;
  const Move move = Next();
  EXPECT_FALSE(move.write);
  ASSERT_TRUE(move.pin_answer);
  EXPECT_TRUE(absl::IsNotFound(move.pin_answer->status()));
}

TEST_F(PinRulesTest, WhileADecisionIsMadeARequestWaits) {
  RecordCommit(At(1, 5));
  pin_asked_ = &request_;
  records_.timeline.value.set_closing(true);
  EXPECT_TRUE(IsNone(Next()));
}

TEST_F(PinRulesTest, WhatIsOverGoesBeforeARequestIsHeard) {
  Pin& pin = *records_.pins.value.add_pins();
  SetVersion(At(1, 5), pin);
  pin.set_number(3);
  pin_asked_ = &request_;
  pins_over_ = {3};
  const Move move = Next();
  ASSERT_TRUE(move.write && move.write->pins);
  EXPECT_TRUE(move.write->pins->pins().empty());
  EXPECT_FALSE(move.pin_answer);
}

}  // namespace
}  // namespace unreft::smp
