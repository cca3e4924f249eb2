// What nodes read of each other when a job goes on in another layout (docs/protocol.md, rule 31).
#include "tests/sim/cluster/reshaping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unreft::sim {
namespace {

using ::testing::HasSubstr;

// Bytes read over bytes needed: a node may drop what a rank is slow to take, and fetch it again.
constexpr double kFetchedOnce = 1.05;

// With another network each time, and reads that who serves them has no room for.
TEST(ReshapingTest, WithoutALossEachBlockIsFetchedOnceForANode) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto reads = Reshape({.reads_busy_one_in = 4, .seed = seed});
    ASSERT_TRUE(reads.ok()) << "seed " << seed << ": " << reads.status();
    EXPECT_LE(reads->read, kFetchedOnce * reads->needed) << "seed " << seed;
    EXPECT_GE(reads->read, reads->needed) << "seed " << seed;
  }
}

TEST(ReshapingTest, WhatIsLostIsDecodedOnceForTheJob) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto reads = Reshape({.with_loss = true, .seed = seed});
    ASSERT_TRUE(reads.ok()) << "seed " << seed << ": " << reads.status();
    EXPECT_LE(reads->read - reads->needed, 2 * reads->lost) << "seed " << seed;
  }
}

TEST(ReshapingPlantedBugTest, StagesPerRank) {
  const auto reads = Reshape({.bug = PlantedBug::kStagesPerRank});
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_GT(reads->read, kFetchedOnce * reads->needed);
}
TEST(ReshapingPlantedBugTest, DecodesWhenBusy) {
  const auto reads = Reshape({.reads_busy_one_in = 4, .bug = PlantedBug::kDecodesWhenBusy});
  EXPECT_THAT(std::string(reads.status().message()),
              HasSubstr("is decoded from, and nothing of it is lost"));
}
TEST(ReshapingPlantedBugTest, DecodesItself) {
  const auto reads = Reshape({.with_loss = true, .bug = PlantedBug::kDecodesItself});
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_GT(reads->read - reads->needed, 2 * reads->lost);
}

}  // namespace
}  // namespace unreft::sim
