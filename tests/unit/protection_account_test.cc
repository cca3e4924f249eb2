#include "base/protection_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unreft {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProtectionAccountTest : public testing::Test {
 protected:
  ProtectionAccountTest() { account_.Begin(std::nullopt, now_); }
  std::string why(const std::string& obstacle = "") const {
    return account_.WhyNot(obstacle, "Look there.", now_);
  }

  ProtectionAccount account_;
  Time now_{seconds(1000)};
};

TEST_F(ProtectionAccountTest, SaysThatNoSnapshotWasTaken) {
  EXPECT_EQ(why(), "nothing is committed yet: no snapshot was taken so far. Look there.");
  EXPECT_EQ(why("rank 1 did not come"),
            "nothing is committed yet: rank 1 did not come. Look there.");
}

TEST_F(ProtectionAccountTest, SaysSinceWhenHowManyAndWhy) {
  account_.Started(Step{7}, now_);
  account_.Committed(Step{7}, now_);
  EXPECT_EQ(why(), "");
  now_ += seconds(2);
  account_.Started(Step{8}, now_);
  account_.GaveUp(Step{8}, "rank 1: its copies were late");
  account_.GaveUp(Step{8}, "abandoned");
  account_.Skipped(Step{9}, "memory is prepared", now_);
  account_.GaveUp(Step{9}, "rank 0: skipped: memory is prepared");
  now_ += seconds(70);
  account_.Skipped(Step{10}, "memory is prepared", now_);
  EXPECT_EQ(why(),
            "nothing is committed since 72 s: step 7 is the newest that is, step 8 waits for 70 s; "
            "1 snapshot was given up, the last (step 8): rank 1: its copies were late; 2 snapshots "
            "were skipped, the last (step 10): memory is prepared. Look there.");
  account_.Committed(Step{10}, now_);
  EXPECT_EQ(why(), "");
  EXPECT_EQ(account_.skipped() + account_.given_up(), 0u);
}

TEST_F(ProtectionAccountTest, CountsEachStepOnceHoweverMany) {
  for (uint64_t step = 1; step <= 1000; ++step) {
    account_.Started(Step{step}, now_);
    account_.GaveUp(Step{step}, "one");
    account_.GaveUp(Step{step}, "two");
  }
  EXPECT_EQ(account_.given_up(), 1000u);
  EXPECT_THAT(why(), AllOf(HasSubstr("1000 snapshots were given up, the last (step 1000): one"),
                           Not(HasSubstr("skipped"))));
}

TEST(ForPeopleTest, HasAUnitThatFits) {
  EXPECT_EQ(ForPeople(seconds(75)), "75 s");
  EXPECT_EQ(ForPeople(seconds(3000)), "50 min");
  EXPECT_EQ(ForPeople(seconds(12600)), "3.5 h");
}

}  // namespace
}  // namespace unreft
