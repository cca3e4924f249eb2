// The tables that plans are made by: with the boxes alone that are asked for, plans are the same.
#include "recovery/restore_tables.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "layout/capture_plan.h"
#include "layout/tensor_table.h"
#include "recovery/restore_planner.h"
#include "tests/unit/layout_testing.h"

namespace unreft::recovery {
namespace {

using layout::Box;

TensorSpec In(const Box& box, const std::string& name, const Dims& shape) {
  return Spec(name, shape, box.offset, box.extent);
}

// A version of ranks that hold what is given.
class World {
 public:
  void AddRank(std::vector<TensorSpec> specs) {
    auto table = layout::TensorTable::Create(std::move(specs));
    ASSERT_TRUE(table.ok()) << table.status();
    const auto plan = layout::CapturePlan::Make(*table, layout::CaptureMode::kSharded);
    layout::SlotManifest manifest{.job = "job",
                                  .version = {Timeline{1}, Step{1}},
                                  .rank = Rank{manifests_.size()},
                                  .world = 1000,
                                  .layout_digest = plan.digest(),
                                  .block_bytes = 4096,
                                  .data_bytes = plan.data_bytes()};
    manifest.tensors = {table->specs().begin(), table->specs().end()};
    manifest.parts = {plan.parts().begin(), plan.parts().end()};
    manifests_.push_back(std::make_shared<const std::string>(layout::EncodeManifest(manifest)));
  }

  // In nodes of so many ranks.
  void FillIn(RestoreTables& tables, size_t node = 3) const {
    std::vector<layout::ManifestView> views(node);
    for (size_t first = 0; first < manifests_.size(); first += node) {
      std::vector<RestoreTables::Slab> slabs;
      for (size_t i = first; i < std::min(first + node, manifests_.size()); ++i) {
        ASSERT_TRUE(views[i - first].Read(*manifests_[i]).ok());
        slabs.push_back({static_cast<uint32_t>(i), manifests_[i], &views[i - first]});
      }
      tables.AddSlabs(slabs);
    }
  }

 private:
  std::vector<std::shared_ptr<const std::string>> manifests_;
};

WantedBoxes Wanting(std::span<const TensorSpec> targets) {
  WantedBoxes wanted;
  wanted.Add(targets);
  return wanted;
}

TEST(WantedBoxesTest, WhatLiesBetweenTwoTargetsIsCoveredToo) {
  WantedBoxes wanted;
  wanted.Add(Spec("w", {10, 10}, {2, 2}, {2, 2}));
  wanted.Add(Spec("w", {10, 10}, {6, 3}, {2, 2}));
  EXPECT_TRUE(wanted.Covers(Spec("w", {10, 10}, {4, 4}, {2, 1})));
  EXPECT_FALSE(wanted.Covers(Spec("w", {10, 10}, {1, 4}, {2, 1})));
  EXPECT_FALSE(wanted.Covers(Spec("w", {10, 10}, {4, 4}, {2, 2})));
  EXPECT_FALSE(wanted.Covers(Spec("v", {10, 10}, {4, 4}, {2, 1})));
  EXPECT_FALSE(wanted.Covers(Spec("w", {10}, {4}, {2})));
  EXPECT_EQ(wanted.Find("v"), nullptr);
}

TEST(WantedBoxesTest, OfATensorWithSeveralNumbersOfDimensionsAllCounts) {
  WantedBoxes wanted;
  wanted.Add(Spec("w", {10, 10}, {2, 2}, {2, 2}));
  wanted.Add(Spec("w", {100}, {0}, {1}));
  EXPECT_TRUE(wanted.Covers(Whole("w", {10, 10})));
  EXPECT_TRUE(wanted.Covers(Whole("w", {100})));
  wanted.Add(Spec("w", {10, 10}, {2, 2}, {2, 2}));
  EXPECT_TRUE(wanted.Covers(Whole("w", {100})));
}

// Whatever was expected, and whatever is asked for then.
TEST(RestoreTablesTest, PlansAreThoseOfTablesOfEverything) {
  constexpr uint64_t kSeeds = 3000;
  size_t planned = 0;
  size_t anew = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    World world;
    std::vector<std::pair<std::string, Dims>> tensors;
    std::vector<std::vector<TensorSpec>> ranks(1 + random.Below(7));
    for (uint64_t t = random.Below(4); t-- > 0;) {
      const std::string name = fmt::format("w{}", t);
      const Dims shape = RandomShape(random, 3, 6);
      tensors.emplace_back(name, shape);
      for (const Box& box : RandomShards(random, shape)) {
        if (random.OneIn(30)) continue;  // a hole
        ranks[random.Below(ranks.size())].push_back(In(box, name, shape));
      }
    }
    for (auto& specs : ranks) world.AddRank(std::move(specs));
    const auto draw_targets = [&] {
      std::vector<TensorSpec> targets;
      for (const auto& [name, shape] : tensors) {
        if (random.OneIn(3)) continue;
        const std::vector<Box> boxes = RandomShards(random, shape);
        targets.push_back(In(boxes[random.Below(boxes.size())], name, shape));
      }
      if (random.OneIn(10)) targets.push_back(Whole("of nobody", {3}));
      return targets;
    };
    RestoreTables everything(ranks.size());
    world.FillIn(everything);
    RestoreTables tables(ranks.size(), Wanting(draw_targets()));
    world.FillIn(tables, 1 + random.Below(3));
    for (int request = 0; request < 3; ++request) {
      const std::vector<TensorSpec> targets = draw_targets();
      const auto before = tables.Latest();
      const auto stored = tables.For(targets);
      ASSERT_TRUE(stored->Cover(targets));
      ASSERT_EQ(stored, tables.Latest());
      anew += stored != before;
      ASSERT_EQ(stored == before, before->Cover(targets));
      const auto plan = PlanRestore(*stored, targets);
      const auto expected = PlanRestore(*everything.For(targets), targets);
      ASSERT_EQ(plan.status(), expected.status());
      if (plan.ok()) {
        ASSERT_EQ(*plan, *expected);
      }
      planned += plan.ok() && !plan->empty();
      ASSERT_EQ(stored->InOrder().size(), everything.Latest()->InOrder().size());
    }
  }
  EXPECT_GT(planned, kSeeds);
  EXPECT_GT(anew, kSeeds / 2);
}

std::vector<TensorSpec> RowOf(uint64_t row, uint64_t rows) {
  return {Spec("w", {rows, 8}, {row, 0}, {1, 8})};
}

TEST(RestoreTablesTest, OnlyTheBoxesThatAreAskedForAreKept) {
  constexpr uint64_t kRanks = 20;
  World world;
  for (uint64_t rank = 0; rank < kRanks; ++rank) world.AddRank(RowOf(rank, kRanks));
  RestoreTables tables(kRanks, Wanting(RowOf(4, kRanks)));
  world.FillIn(tables);
  EXPECT_EQ((*tables.Latest()->Find("w")->Shards())->shards(), 1);
  EXPECT_EQ((*tables.For(RowOf(6, kRanks))->Find("w")->Shards())->shards(), 3);
  // Who asks for what nobody stored has nothing read for it.
  const auto before = tables.Latest();
  EXPECT_EQ(tables.For(std::vector{Whole("v", {3})}), before);
}

TEST(RestoreTablesTest, SeveralMayAskAtOnceForWhatNobodyExpected) {
  constexpr uint64_t kRanks = 64;
  World world;
  for (uint64_t rank = 0; rank < kRanks; ++rank) world.AddRank(RowOf(rank, kRanks));
  RestoreTables tables(kRanks, WantedBoxes{});
  world.FillIn(tables);
  std::vector<std::thread> threads;
  std::vector<std::vector<PlanPiece>> plans(kRanks);
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t row = thread; row < kRanks; row += 4) {
        const auto targets = RowOf(row, kRanks);
        plans[row] = *PlanRestore(*tables.For(targets), targets);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t row = 0; row < kRanks; ++row) {
    ASSERT_EQ(plans[row].size(), 1);
    EXPECT_EQ(plans[row][0].source, row);
  }
}

}  // namespace
}  // namespace unreft::recovery
