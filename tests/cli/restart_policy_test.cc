#include "tools/cli/restart_policy.h"

#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

constexpr RestartLimits kLimits{.backoff_min = Milliseconds(100),
                                .backoff_max = Milliseconds(300),
                                .stable = Milliseconds(1000),
                                .deaths_in_a_row_max = 4};
constexpr Milliseconds kShort(10);
constexpr Milliseconds kLong(1000);

TEST(RestartPolicy, WaitsLongerAtEachDeathUpToALimit) {
  RestartPolicy policy(kLimits);
  EXPECT_EQ(policy.NextDelay(kShort), Milliseconds(100));
  EXPECT_EQ(policy.NextDelay(kShort), Milliseconds(200));
  EXPECT_EQ(policy.NextDelay(kShort), Milliseconds(300));
  EXPECT_EQ(policy.NextDelay(kShort), Milliseconds(300));
  EXPECT_EQ(policy.NextDelay(kShort), std::nullopt);
}

TEST(RestartPolicy, ALongLifeBeginsAnew) {
  RestartPolicy policy(kLimits);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(policy.NextDelay(kLong), Milliseconds(100));
    EXPECT_EQ(policy.NextDelay(kShort), Milliseconds(200));
  }
}

}  // namespace
}  // namespace unreft::cli
