#include "smp/job/replica_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReplicaComparisonTest, EqualOnesAgree) {
  const auto result = CompareReplicas({{Rank{0}, {{"w", 1}, {"v", 2}}}, {Rank{1}, {{"w", 1}}}});
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.disagreement, "");
}

TEST(ReplicaComparisonTest, ADifferenceNamesShardRanksAndDigests) {
  const auto result = CompareReplicas(
      {{Rank{0}, {{"w", 0xaa}}}, {Rank{1}, {{"w", 0xaa}}}, {Rank{2}, {{"w", 0xbb}}}});
  EXPECT_THAT(result.disagreement, AllOf(HasSubstr("w"), HasSubstr("rank 0"), HasSubstr("rank 2"),
                                         HasSubstr("000000aa"), HasSubstr("000000bb")));
}

TEST(ReplicaComparisonTest, WhatWasNotSampledIsIncomplete) {
  const auto result = CompareReplicas({{Rank{0}, {{"w", 1}}}, {Rank{1}, {{"w", std::nullopt}}}});
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.disagreement, "");
}

}  // namespace
}  // namespace unreft::smp
