// What a node needs by the plan is what its stores then take.

#include "smp/memory/memory_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/control_page.h"
#include "base/node_header.h"
#include "smp/core/records_size.h"

namespace unreft::smp {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

NodeOptions Options(uint64_t nodes, uint32_t k, uint32_t m) {
  NodeOptions options;
  options.nodes = nodes;
  options.data_chunks = k;
  options.parity_chunks = m;
  return options;
}

TEST(MemoryPlanTest, ANodeOfOneNeedsItsSlotsAndNoStaging) {
  const std::vector<RankNeeds> ranks(4, {{10 * kMiB, 4096, 4096}, 40 * kMiB});
  NodeOptions options = Options(1, 1, 0);
  options.pins = 1;
  const MemoryPlan plan = PlanMemory(options, ranks);
  EXPECT_EQ(plan.slots, 16U);
  EXPECT_EQ(plan.slot_bytes, 16 * SlotBytes(options.block_bytes, ranks[0].slot));
  EXPECT_EQ(plan.guards, 0U);
  EXPECT_EQ(plan.guard_bytes, 0U);
  EXPECT_EQ(plan.staging_bytes, 0U);
  EXPECT_EQ(plan.control_bytes, kNodeSegmentBytes + RecordsBytes(1) + 4 * kControlSegmentBytes);
  EXPECT_EQ(plan.Sum(), plan.slot_bytes + plan.control_bytes);
}

TEST(MemoryPlanTest, WithRsKmAGuardTakesMOfKOfWhatTheNodeCaptures) {
  const std::vector<RankNeeds> ranks(2, {{10 * kMiB, 4096, 4096}, 10 * kMiB});
  const MemoryPlan plan = PlanMemory(Options(6, 4, 2), ranks);
  EXPECT_EQ(plan.guards, 3U);
  const uint64_t parities = 3 * 2 * 20 * kMiB / 4;
  EXPECT_GE(plan.guard_bytes, parities);
  EXPECT_LT(plan.guard_bytes, parities + 8 * kMiB);  // whole blocks, and the descriptions
  EXPECT_EQ(plan.staging_bytes, 20 * kMiB);
  EXPECT_EQ(plan.control_bytes, kNodeSegmentBytes + RecordsBytes(6) + 2 * kControlSegmentBytes);
}

TEST(MemoryPlanTest, StagingIsBoundedByTheOptionAndHasABlockForEachRank) {
  NodeOptions options = Options(4, 2, 2);
  const std::vector<uint64_t> ranks(8, uint64_t{100} << 30);
  EXPECT_EQ(StagingBytes(options, ranks), options.restore_staging_bytes);
  options.restore_staging_bytes = 0;
  EXPECT_EQ(StagingBytes(options, ranks), 8 * options.block_bytes);
  const std::vector<uint64_t> small = {1, 0};
  EXPECT_EQ(StagingBytes(options, small), 2 * options.block_bytes);
  EXPECT_EQ(StagingBytes(options, {}), 0U);
}

TEST(MemoryPlanTest, SumsThatNoMemoryHasDoNotWrap) {
  const std::vector<TensorSpec> none;
  EXPECT_EQ(StateBytes(none), 0U);
  MemoryPlan plan;
  plan.slot_bytes = UINT64_MAX;
  plan.guard_bytes = 1;
  EXPECT_EQ(plan.Sum(), UINT64_MAX);
}

}  // namespace
}  // namespace unreft::smp
