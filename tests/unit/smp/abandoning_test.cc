// Up to which step a job gives up, and where all ranks begin again.
#include "smp/job/abandoning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/format.h"
#include "smp/job/newest_steps.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

StepUnderWay Failed(uint64_t step) { return {Step{step}, "rank 1: skipped"}; }
StepUnderWay Alive(uint64_t step) { return {Step{step}, std::nullopt}; }

std::optional<Step> Through(const std::vector<StepUnderWay>& under_way, uint64_t newest,
                            uint64_t lead = 1) {
  const auto abandonment = WhatToAbandon(under_way, Step{newest}, lead);
  return abandonment ? std::optional(abandonment->through) : std::nullopt;
}

TEST(AbandoningTest, WhatMayBeCommittedIsNotGivenUp) {
  EXPECT_EQ(Through({}, 9), std::nullopt);
  EXPECT_EQ(Through({Alive(5), Alive(6)}, 9), std::nullopt);
}

TEST(AbandoningTest, BehindWhatMayBeCommittedNothingIsGivenUpYet) {
  EXPECT_EQ(Through({Alive(5), Failed(6), Failed(7)}, 9), std::nullopt);
}

TEST(AbandoningTest, ItComesUpToTheOldestThatMayBeCommitted) {
  EXPECT_EQ(Through({Failed(5), Failed(6), Alive(8), Failed(9)}, 9), Step{7});
}

TEST(AbandoningTest, WhereNothingIsLeftAllBeginBeyondTheFastest) {
  EXPECT_EQ(Through({Failed(5), Failed(6)}, 9), Step{9});
  EXPECT_EQ(Through({Failed(5), Failed(6)}, 9, 20), Step{28});
}

TEST(AbandoningTest, WhatNobodyComesNearKeepsNobodyWaiting) {
  EXPECT_EQ(Through({Failed(5000)}, 9), std::nullopt);
  EXPECT_EQ(Through({Failed(5), Failed(5000)}, 9), Step{9});
  EXPECT_EQ(Through({Failed(5), Alive(5000)}, 9), Step{9});
}

TEST(AbandoningTest, TheNewestThatFailedIsNamed) {
  const auto abandonment = WhatToAbandon(std::vector{Failed(5), Failed(6)}, Step{9}, 1);
  EXPECT_EQ(abandonment->reason, "step 6: rank 1: skipped");
}

TEST(StepPaceTest, CountsTheStepsOfATime) {
  StepPace pace;
  EXPECT_EQ(pace.StepsIn(seconds(1)), 1U) << "nothing is known";
  for (uint64_t tick = 0; tick <= 50; ++tick)
    pace.Note(Step{tick * 10}, Time{tick * milliseconds(100)});
  EXPECT_EQ(pace.StepsIn(milliseconds(50)), 5U);
  EXPECT_EQ(pace.StepsIn(seconds(2)), 200U);
  EXPECT_EQ(pace.StepsIn(seconds(1000)), kStepsApartMax);
}

TEST(StepPaceTest, AJobOfLongStepsHasOne) {
  StepPace pace;
  for (uint64_t step = 0; step <= 9; ++step) pace.Note(Step{step}, Time{step * seconds(10)});
  EXPECT_EQ(pace.StepsIn(seconds(2)), 1U);
}

TEST(StepPaceTest, AnotherTimelineBeginsAnew) {
  StepPace pace;
  pace.Note(Step{1000}, Time{seconds(1)});
  pace.Note(Step{10}, Time{seconds(10)});
  EXPECT_EQ(pace.StepsIn(seconds(1)), 1U);
  pace.Note(Step{30}, Time{seconds(12)});
  pace.Note(Step{50}, Time{seconds(14)});
  EXPECT_EQ(pace.StepsIn(seconds(1)), 10U);
}

TEST(StepPaceTest, WhoBeginsToLeadKnowsItSoon) {
  StepPace pace;
  pace.Note(Step{}, Time{seconds(1)});
  pace.Note(Step{500}, Time{seconds(2)});
  pace.Note(Step{510}, Time{seconds(2) + milliseconds(100)});
  pace.Note(Step{520}, Time{seconds(2) + milliseconds(200)});
  EXPECT_EQ(pace.StepsIn(milliseconds(50)), 5U);
}

// All nodes had told, one of them nothing of its ranks, since its daemon had just started. All were
// to begin again 1,024 steps later then, which took them ten seconds.
TEST(StepPaceTest, ALeapIsNoPace) {
  StepPace pace;
  pace.Note(Step{45}, Time{seconds(1)});
  pace.Note(Step{45}, Time{seconds(1) + milliseconds(100)});
  pace.Note(Step{2240}, Time{seconds(1) + milliseconds(200)});
  EXPECT_EQ(pace.StepsIn(seconds(2)), 1U);
  pace.Note(Step{2440}, Time{seconds(3) + milliseconds(200)});
  EXPECT_EQ(pace.StepsIn(seconds(2)), 200U);
}

}  // namespace
}  // namespace unreft::smp
