// Fault points: what arms them, and what they then do.

#include "base/fault_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>
#include <vector>

namespace unreft {
namespace {

using testing::HasSubstr;

TEST(FaultPoints, UnarmedAndAbsentPointsPass) {
  FaultPoints points;
  EXPECT_TRUE(points.Check("slot.seal").ok());
  EXPECT_TRUE(CheckFault(&points, "slot.seal").ok());
  EXPECT_TRUE(CheckFault(nullptr, "slot.seal").ok());
  EXPECT_TRUE(points.Arm("").ok());
  EXPECT_EQ(points.passed("slot.seal"), 0u);
}

TEST(FaultPoints, FailsEachTimeUntilOff) {
  FaultPoints points;
  ASSERT_TRUE(points.Arm("slot.seal=fail").ok());
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = points.Check("slot.seal");
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("slot.seal"));
  }
  EXPECT_TRUE(points.Check("slot.grant").ok());
  EXPECT_EQ(points.passed("slot.seal"), 3u);
  EXPECT_EQ(points.passed("slot.grant"), 1u);
  ASSERT_TRUE(points.Arm("slot.seal=off").ok());
  EXPECT_TRUE(points.Check("slot.seal").ok());
}

TEST(FaultPoints, FailsOnceAtTheNthPassing) {
  FaultPoints points;
  ASSERT_TRUE(points.Arm("a=fail:3,b=fail:1").ok());
  std::vector<bool> failed;
  for (int i = 0; i < 5; ++i) failed.push_back(!points.Check("a").ok());
  EXPECT_EQ(failed, (std::vector<bool>{false, false, true, false, false}));
  EXPECT_FALSE(points.Check("b").ok());
}

TEST(FaultPoints, RefusesWhatItDoesNotKnowWhole) {
  for (const char* spec : {"a", "=fail", "a=burn", "a=fail:", "a=fail:0", "a=fail:x", "a=off:1"}) {
    FaultPoints points;
    const absl::Status status = points.Arm(std::string("ok=fail,") + spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(std::string(status.message()), HasSubstr(spec));
    EXPECT_TRUE(points.Check("ok").ok());
  }
}

TEST(FaultPoints, OnlyOneOfManyThreadsMeetsTheNthPassing) {
  FaultPoints points;
  ASSERT_TRUE(points.Arm("a=fail:500").ok());
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 250; ++j) failed += points.Check("a").ok() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 1);
}

TEST(FaultPointsDeathTest, CrashIsASigkill) {
  FaultPoints points;
  ASSERT_TRUE(points.Arm("a=crash:2").ok());
  EXPECT_TRUE(points.Check("a").ok());
  EXPECT_EXIT(points.Check("a").IgnoreError(), testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace unreft
