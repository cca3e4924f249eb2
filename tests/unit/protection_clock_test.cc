#include "base/protection_clock.h"

#include <gtest/gtest.h>

namespace unreft {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

class ProtectionClockTest : public testing::Test {
 protected:
  // Each step is reported and committed.
  void TrainFor(Duration duration, Duration distance) {
    for (const Time end = now_ + duration; now_ < end; now_ += distance) {
      clock_.Reported(Step{++step_}, true, now_);
      clock_.Committed(Step{step_}, now_);
    }
  }
  // Each step is reported, none committed.
  void TrainInVainFor(Duration duration, Duration distance, bool started = true) {
    for (const Time end = now_ + duration; now_ < end; now_ += distance) {
      clock_.Reported(Step{++step_}, started, now_);
    }
  }
  bool protecting() const { return clock_.ProtectingAt(now_); }

  ProtectionClock clock_;
  Time now_{hours(1)};
  uint64_t step_ = 0;
};

TEST_F(ProtectionClockTest, NothingIsProtectedBeforeTheFirstCommit) {
  EXPECT_FALSE(protecting());
  clock_.Begin(std::nullopt, now_);
  EXPECT_FALSE(protecting());
  clock_.Reported(Step{1}, true, now_);
  EXPECT_FALSE(protecting());
  EXPECT_FALSE(clock_.SinceCommit(now_).has_value());
  clock_.Committed(Step{1}, now_);
  EXPECT_TRUE(protecting());
  EXPECT_EQ(clock_.SinceCommit(now_ + seconds(3)), seconds(3));
}

TEST_F(ProtectionClockTest, WhatWasRestoredIsCommittedAndAFreshStartIsNot) {
  clock_.Begin(Step{40}, now_);
  EXPECT_TRUE(protecting());
  EXPECT_EQ(clock_.SinceCommit(now_ + seconds(5)), seconds(5));
  step_ = 40;
  TrainInVainFor(seconds(59), seconds(1));
  EXPECT_TRUE(protecting());
  TrainInVainFor(seconds(2), seconds(1));
  EXPECT_FALSE(protecting());
  clock_.Begin(std::nullopt, now_);
  EXPECT_FALSE(clock_.committed().has_value());
}

TEST_F(ProtectionClockTest, AMinuteWithoutACommitEndsItAndACommitBringsItBack) {
  TrainFor(minutes(5), seconds(1));
  const uint64_t last = step_;
  TrainInVainFor(seconds(60), seconds(1));
  EXPECT_TRUE(clock_.ProtectingAt(now_ - seconds(1)));
  EXPECT_EQ(clock_.waiting(), Step{last + 1});
  now_ += seconds(1);
  EXPECT_FALSE(protecting());
  EXPECT_EQ(clock_.committed(), Step{last});
  // Not the newest of those reported, but it leaves none that is old.
  clock_.Committed(Step{step_ - 2}, now_);
  EXPECT_TRUE(protecting());
  EXPECT_EQ(clock_.waiting(), Step{step_ - 1});
}

TEST_F(ProtectionClockTest, SkippedStepsCountAsReported) {
  TrainFor(minutes(5), seconds(1));
  TrainInVainFor(seconds(65), seconds(1), /*started=*/false);
  EXPECT_FALSE(protecting());
}

TEST_F(ProtectionClockTest, APauseIsNoAlarm) {
  TrainFor(minutes(5), seconds(1));
  EXPECT_TRUE(clock_.ProtectingAt(now_ + hours(20)));
  // Also when the last step before it was skipped, or given up, as happens: a step is at risk, and
  // no more than that while nothing is trained.
  clock_.Reported(Step{++step_}, false, now_);
  EXPECT_TRUE(clock_.ProtectingAt(now_ + hours(20)));
  EXPECT_FALSE(clock_.TurnsFalseAt(now_).has_value());
  clock_.Reported(Step{++step_}, true, now_);
  EXPECT_FALSE(clock_.ProtectingAt(now_ + hours(20)));
  EXPECT_EQ(clock_.TurnsFalseAt(now_), now_ + seconds(60));
  clock_.GivenUp(Step{step_});
  EXPECT_TRUE(clock_.ProtectingAt(now_ + hours(20)));
}

TEST_F(ProtectionClockTest, AnOldSkipIsAnAlarmOnceTrainingGoesOn) {
  TrainFor(minutes(5), seconds(1));
  clock_.Reported(Step{++step_}, false, now_);
  now_ += minutes(10);
  EXPECT_TRUE(protecting());
  clock_.Reported(Step{++step_}, false, now_);
  EXPECT_FALSE(protecting());
}

TEST_F(ProtectionClockTest, TheLimitFollowsTheUsualDistanceOfCommits) {
  TrainFor(hours(2), minutes(4));
  EXPECT_EQ(clock_.limit(), minutes(20));
  // One night's pause, one quick commit: the usual distance stays.
  now_ += hours(9);
  TrainFor(minutes(4), minutes(4));
  clock_.Committed(Step{++step_}, now_ - minutes(3));
  EXPECT_EQ(clock_.limit(), minutes(20));
  TrainInVainFor(minutes(19), minutes(1));
  EXPECT_TRUE(protecting());
  TrainInVainFor(minutes(2), minutes(1));
  EXPECT_FALSE(protecting());
}

TEST_F(ProtectionClockTest, StepsOfAnEarlierTimelineAreVoid) {
  TrainFor(hours(1), minutes(4));
  TrainInVainFor(hours(2), minutes(1));
  EXPECT_FALSE(protecting());
  clock_.Begin(Step{15}, now_);
  EXPECT_TRUE(protecting());
  EXPECT_FALSE(clock_.waiting().has_value());
  EXPECT_EQ(clock_.limit(), minutes(20)) << "the usual distance is the job's";
}

TEST_F(ProtectionClockTest, RanksMayReportAStepAgainAndLate) {
  TrainFor(minutes(1), seconds(1));
  clock_.Reported(Step{step_ + 1}, false, now_);
  clock_.Reported(Step{step_ + 2}, false, now_ + seconds(50));
  clock_.Reported(Step{step_ + 1}, true, now_ + seconds(55));
  EXPECT_EQ(clock_.WaitingFor(now_ + seconds(55)), seconds(55));
  clock_.Reported(Step{step_ - 5}, true, now_ + seconds(56));  // committed long ago
  EXPECT_EQ(clock_.waiting(), Step{step_ + 1});
  clock_.Committed(Step{step_ + 2}, now_ + seconds(57));
  clock_.Committed(Step{step_ + 1}, now_ + seconds(58));  // older than what is committed
  EXPECT_EQ(clock_.committed(), Step{step_ + 2});
}

TEST_F(ProtectionClockTest, AMillionStepsWithoutACommitTakeNoMemoryAndKeepTheOldest) {
  TrainFor(minutes(1), seconds(1));
  const uint64_t last = step_;
  const Time since = now_;
  TrainInVainFor(hours(28), std::chrono::milliseconds(100));
  EXPECT_EQ(clock_.waiting(), Step{last + 1});
  EXPECT_EQ(clock_.WaitingFor(now_), now_ - since);
  clock_.Committed(Step{step_ - 10}, now_);
  EXPECT_TRUE(protecting());
  EXPECT_LT(clock_.WaitingFor(now_), seconds(3));
}

}  // namespace
}  // namespace unreft
