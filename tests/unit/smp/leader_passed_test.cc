// What a rank has gone on without is given up at once: no clock is waited for.

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

class LeaderPassedTest : public LeaderFixture {
 protected:
  static constexpr NodeSlot kSlot{2};
  static constexpr Rank kRank{2};

  LeaderPassedTest() {
    Ask(1);
    options_.version_deadline = std::chrono::hours(24);
    // All ranks but rank 2 have sealed it.
    for (const uint64_t slot : {0, 1, 3}) Seal(NodeSlot{slot}, At(1, 5), Rank{slot});
    ReportAll();
  }

  void SayRankIsAt(Version newest, std::vector<uint64_t> capturing = {}) {
    NodeReport& report = nodes_.at(kSlot).report;
    report.set_newest_timeline(newest.timeline.value);
    report.clear_registered();
    RegisteredRank& rank = *report.add_registered();
    rank.set_rank(kRank.value);
    rank.set_world(world_);
    rank.set_passed_step(newest.step.value);
    for (const uint64_t step : capturing) rank.add_capturing(step);
    Report(kSlot);
    Settle();
  }
};

TEST_F(LeaderPassedTest, ItHeldASlotOfEveryRankUntilTheDeadline) {
  EXPECT_FALSE(IsAbandoned(At(1, 5)));
  SayRankIsAt(At(1, 9));
  ASSERT_TRUE(IsAbandoned(At(1, 5)));
  EXPECT_EQ(WhyGivenUp(), "step 5: node 2: rank 2 is at step 9 and has not captured it");
  EXPECT_GT(CaptureFrom(), Step{5});
}

TEST_F(LeaderPassedTest, WhatItHasYetToComeToMayBeWhole) {
  SayRankIsAt(At(1, 4));
  EXPECT_FALSE(IsAbandoned(At(1, 5)));
}

TEST_F(LeaderPassedTest, WhatItCapturesMayBeWhole) {
  SayRankIsAt(At(1, 9), {5, 9});
  EXPECT_FALSE(IsAbandoned(At(1, 5)));
  SayRankIsAt(At(1, 9), {9});
  EXPECT_TRUE(IsAbandoned(At(1, 5)));
}

TEST_F(LeaderPassedTest, WhatItHasSealedIsThere) {
  Seal(kSlot, At(1, 5), kRank);
  SayRankIsAt(At(1, 9));
  EXPECT_FALSE(IsAbandoned(At(1, 5)));
}

// A daemon came back with an empty memory before what its group bears to have lost was committed.
// Its rank trains on, nobody asks for a decision, and every rank's slots were held for ever.
TEST_F(LeaderPassedTest, WhatADecisionWouldFindDoesNotWaitForOneThatDoesNotCome) {
  Protect(At(1, 6));
  nodes_.at(NodeSlot{0}).versions.at(At(1, 6)).set_guarded(false);
  ReportAll();
  Leave(kSlot);
  nodes_.at(NodeSlot{0}).versions.at(At(1, 6)).set_guarded(true);
  ReportAll();
  Settle(std::chrono::seconds(60));
  Join(kSlot, "b");
  Settle(std::chrono::seconds(2));
  ReportAll();
  EXPECT_FALSE(IsAbandoned(At(1, 6))) << "its rank may ask";
  SayRankIsAt(At(1, 9));
  EXPECT_TRUE(IsAbandoned(At(1, 6)));
  EXPECT_EQ(commit().world(), 0U);
}

// Steps of another timeline say nothing of this one's.
TEST_F(LeaderPassedTest, AnotherTimelinesStepsDoNotCount) {
  SayRankIsAt(At(2, 9));
  EXPECT_FALSE(IsAbandoned(At(1, 5)));
}

}  // namespace
}  // namespace unreft::smp
