// What is stored of each tensor: found by box, checked, and read by several threads at once.
#include "recovery/stored_tables.h"

#include <absl/strings/match.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "layout/job_layout.h"
#include "recovery/restore_planner.h"
#include "tests/unit/layout_testing.h"

namespace unreft::recovery {
namespace {

using layout::Box;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ShardTable TableOf(const std::vector<Box>& boxes, size_t dimensions) {
  ShardTable table(dimensions);
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    table.Add(boxes[i].offset, boxes[i].extent, {.shard_end = 1, .slab = i});
  }
  table.Sort();
  return table;
}

// Of a partition of the shape, in any order; now and then one that is disturbed.
std::vector<Box> RandomBoxes(Random& random, const Dims& shape) {
  std::vector<Box> boxes = RandomShards(random, shape);
  if (random.OneIn(3)) {
    Box& box = boxes[random.Below(boxes.size())];
    for (size_t d = 0; d < shape.size(); ++d) {
      box.offset[d] = random.Below(shape[d]);
      box.extent[d] = 1 + random.Below(shape[d] - box.offset[d]);
    }
  }
  for (Box& box : boxes) std::swap(box, boxes[random.Below(boxes.size())]);
  return boxes;
}

TEST(ShardTableTest, FindsOverlapsAndNeighboursAsComparingAllDoes) {
  size_t overlaps = 0;
  constexpr uint64_t kSeeds = 20'000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Dims shape = RandomShape(random, 3, 6);
    const std::vector<Box> boxes = RandomBoxes(random, shape);
    const ShardTable table = TableOf(boxes, shape.size());
    bool is_any = false;
    for (const Box& a : boxes) {
      for (const Box& b : boxes) is_any |= a != b && Overlap(a, b);
    }
    overlaps += is_any;
    const auto found = table.FindOverlap();
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->has_value(), is_any);
    if (is_any) {
      ASSERT_TRUE(Overlap((*found)->first, (*found)->second));
      ASSERT_NE((*found)->first, (*found)->second);
    }
    const Box wanted = RandomShards(random, shape)[0];
    const auto [first, last] = table.ShardsNear(wanted);
    for (uint32_t shard = 0; shard < table.shards(); ++shard) {
      const bool is_common = Overlap(table.BoxOf(shard), wanted);
      ASSERT_EQ(table.Overlaps(shard, wanted), is_common);
      ASSERT_TRUE(!is_common || (first <= shard && shard < last));
    }
  }
  EXPECT_GT(overlaps, kSeeds / 20);
  EXPECT_LT(overlaps, kSeeds / 2);
}

TEST(ShardTableTest, PartsOfABoxAreTogetherByTheirBegins) {
  ShardTable table(1);
  const Dims zero = {0};
  const Dims four = {4};
  table.Add(four, four, {.shard_begin = 0, .shard_end = 8, .slab = 3});
  table.Add(zero, four, {.shard_begin = 8, .shard_end = 16, .slab = 2});
  table.Add(four, four, {.shard_begin = 8, .shard_end = 16, .slab = 1});
  table.Add(zero, four, {.shard_begin = 0, .shard_end = 8, .slab = 0});
  table.Sort();
  ASSERT_EQ(table.shards(), 2u);
  EXPECT_EQ(table.BoxOf(0), (Box{{0}, {4}}));
  EXPECT_EQ(table.BoxOf(1), (Box{{4}, {4}}));
  const auto slabs = [&](uint32_t shard) {
    std::vector<uint32_t> found;
    for (const ShardPart& part : table.PartsOf(shard)) found.push_back(part.slab);
    return found;
  };
  EXPECT_THAT(slabs(0), ElementsAre(0, 2));
  EXPECT_THAT(slabs(1), ElementsAre(3, 1));
}

// So many boxes of a grid are too many to be cut in two again and again.
TEST(ShardTableTest, AGridOfAMillionBoxesIsKnownToBeApart) {
  constexpr uint64_t kSide = 1000;
  ShardTable table(2);
  const Dims one = {1, 1};
  for (uint64_t i = kSide * kSide; i-- > 0;) {
    const Dims offset = {i / kSide, i % kSide};
    table.Add(offset, one, {.shard_end = 1});
  }
  table.Sort();
  const auto found = table.FindOverlap();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

TEST(StoredTablesTest, TensorsHaveTheirNamesOnceWhateverTheOrderInTheSlabs) {
  StoredTables stored;
  const auto whole = [](uint32_t tensor) {
    return layout::CapturedPart{.tensor = tensor, .bytes = 4, .slab_offset = 64 * tensor};
  };
  const std::vector<TensorSpec> first = {Spec("a", {3}, {0}, {1}), Spec("b", {3}, {0}, {1})};
  const std::vector<TensorSpec> second = {Spec("b", {3}, {1}, {1}), Spec("a", {3}, {1}, {1})};
  const std::vector<TensorSpec> third = {Spec("c", {1}, {0}, {1}), Spec("b", {3}, {2}, {1}),
                                         Spec("a", {3}, {2}, {1})};
  stored.AddSlab(0, first, std::vector{whole(0), whole(1)});
  stored.AddSlab(1, second, std::vector{whole(0), whole(1)});
  stored.AddSlab(2, third, std::vector{whole(0), whole(1)});  // of "a" it captured nothing
  std::vector<std::string> names;
  for (const StoredTensor* tensor : stored.InOrder()) names.push_back(tensor->like().name);
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  EXPECT_EQ((*stored.Find("a")->Shards())->shards(), 2u);
  EXPECT_EQ((*stored.Find("b")->Shards())->shards(), 3u);
  EXPECT_EQ(stored.Find("d"), nullptr);
}

TEST(StoredTablesTest, WhoCapturedNothingOfATensorNamesItAndNoMore) {
  StoredTables stored;
  const auto whole = [](uint32_t tensor) {
    return layout::CapturedPart{.tensor = tensor, .bytes = 4};
  };
  const std::vector<TensorSpec> later = {Whole("b", {1}), Whole("a", {2})};
  std::vector<TensorSpec> first = {Whole("a", {3, 3}), Whole("b", {1})};
  first[1].is_volatile = true;
  stored.AddSlab(1, later, std::vector{whole(0)});
  EXPECT_EQ(stored.Find("a"), nullptr);
  EXPECT_FALSE(stored.Find("b")->like().is_volatile);
  stored.AddSlab(0, first, {});
  EXPECT_EQ(stored.Find("a"), nullptr);
  EXPECT_TRUE(stored.Find("b")->like().is_volatile);
  const std::vector<TensorSpec> parts = {Spec("a", {7}, {0}, {1})};
  stored.AddSlab(2, parts, std::vector{whole(0)});
  EXPECT_EQ(stored.Find("a")->like().global_shape, Dims({7}));
  EXPECT_TRUE(stored.Find("a")->Shards().ok());
  std::vector<std::string> names;
  for (const StoredTensor* tensor : stored.InOrder()) names.push_back(tensor->like().name);
  EXPECT_THAT(names, ElementsAre("a", "b"));  // as rank 0 has them
}

TEST(StoredTablesTest, AFlawOfOneTensorIsToldOfThatOneAlone) {
  StoredTables stored;
  const auto add = [&](const TensorSpec& spec, uint32_t slab) {
    stored.Add({&spec, slab, 0, ShardBytes(spec), 0});
  };
  add(Whole("good", {8}), 0);
  add(Whole("kinds", {8}), 1);
  add(Whole("kinds", {8}, 0, 1, Dtype::kInt32), 2);
  add(Spec("boxes", {8}, {0}, {5}), 3);
  add(Spec("boxes", {8}, {4}, {4}), 4);
  EXPECT_TRUE(stored.Find("good")->Shards().ok());
  EXPECT_EQ(stored.Find("kinds")->Shards().status(),
            absl::FailedPreconditionError("tensor 'kinds': is stored as float32 [8] in slab 1 "
                                          "and as int32 [8] in slab 2"));
  EXPECT_EQ(stored.Find("boxes")->Shards().status(),
            absl::FailedPreconditionError("tensor 'boxes': is stored in boxes that overlap without "
                                          "being equal, [0:5) and [4:8)"));
}

// What a slab's manifest says, with the tensors that the views are of.
struct RandomSlab {
  uint32_t number = 0;
  std::vector<TensorSpec> shards;
  std::vector<layout::CapturedPart> parts;
};

// Now and then of another kind than others have it, and in boxes that may overlap.
TensorSpec RandomShard(Random& random, std::string name) {
  const Dims shape = random.OneIn(60) ? Dims{7} : Dims{6, 4};
  Dims offset;
  Dims extent;
  for (const uint64_t length : shape) {
    offset.push_back(random.Below(length));
    extent.push_back(random.OneIn(60) ? 1 + random.Below(length - offset.back()) : 1);
  }
  TensorSpec shard = Spec(std::move(name), shape, offset, extent);
  shard.is_volatile = random.OneIn(4);
  return shard;
}

// Mostly the names of the slab before, in its order.
std::vector<std::string> RandomNames(Random& random, std::vector<std::string> before) {
  if (random.OneIn(8)) {
    before.clear();
    for (uint64_t i = random.Below(7); i > 0; --i) {
      before.push_back(std::string(1, static_cast<char>('a' + random.Below(9))));
    }
  }
  if (before.size() > 1 && random.OneIn(8)) std::swap(before.front(), before.back());
  if (!before.empty() && random.OneIn(8)) before.pop_back();
  if (!before.empty() && random.OneIn(8)) before.push_back(before[random.Below(before.size())]);
  return before;
}

std::vector<RandomSlab> RandomSlabs(Random& random) {
  std::vector<RandomSlab> slabs(1 + random.Below(12));
  std::vector<std::string> names = {"a", "b", "c"};
  for (uint32_t s = 0; s < slabs.size(); ++s) {
    RandomSlab& slab = slabs[s];
    slab.number = s;
    std::swap(slab.number, slabs[random.Below(s + 1)].number);
    names = RandomNames(random, std::move(names));
    for (uint32_t tensor = 0; tensor < names.size(); ++tensor) {
      slab.shards.push_back(RandomShard(random, names[tensor]));
      for (uint64_t i = random.Below(3); i > 0; --i) {
        slab.parts.push_back(
            {.tensor = tensor, .bytes = 4 * i, .slab_offset = 64 * slab.parts.size()});
      }
    }
    if (slab.parts.size() > 1 && random.OneIn(8)) {
      std::swap(slab.parts.front().tensor, slab.parts.back().tensor);
    }
  }
  return slabs;
}

// All that can be asked.
std::vector<std::string> ContentsOf(const StoredTables& stored) {
  std::vector<std::string> contents;
  for (const StoredTensor* tensor : stored.InOrder()) {
    const auto shards = tensor->Shards();
    const TensorSpec& like = tensor->like();
    contents.push_back(fmt::format(
        "{} {} {} at {}:{} empty {} volatile {} {}", like.name, layout::KindText(like),
        layout::BoxText({like.offset, like.extent}), tensor->first().first, tensor->first().second,
        tensor->empty(), like.is_volatile, shards.status().ToString()));
    if (!shards.ok()) continue;
    for (uint32_t shard = 0; shard < (*shards)->shards(); ++shard) {
      contents.push_back(layout::BoxText((*shards)->BoxOf(shard)));
      for (const ShardPart& part : (*shards)->PartsOf(shard)) {
        contents.push_back(fmt::format("[{}, {}) of {} at {}:{}", part.shard_begin, part.shard_end,
                                       part.shard, part.slab, part.slab_offset));
      }
    }
  }
  return contents;
}

TEST(StoredTablesTest, SlabsThatAreAddedTogetherAreKeptAsOneByOne) {
  constexpr uint64_t kSeeds = 20'000;
  size_t flawed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<RandomSlab> slabs = RandomSlabs(random);
    StoredTables one_by_one;
    StoredTables together;
    std::vector<std::vector<layout::TensorView>> views(slabs.size());
    std::vector<StoredSlab> batch;
    for (size_t i = 0; i < slabs.size(); ++i) {
      one_by_one.AddSlab(slabs[i].number, slabs[i].shards, slabs[i].parts);
      for (const TensorSpec& shard : slabs[i].shards) views[i].push_back(layout::ViewOf(shard));
      batch.push_back({slabs[i].number, views[i], slabs[i].parts});
      if (i + 1 < slabs.size() && !random.OneIn(5)) continue;
      together.AddSlabs(batch);
      batch.clear();
    }
    const std::vector<std::string> contents = ContentsOf(one_by_one);
    ASSERT_EQ(ContentsOf(together), contents);
    flawed += std::ranges::any_of(contents, [](const std::string& line) {
      return absl::StrContains(line, "FAILED_PRECONDITION");
    });
  }
  EXPECT_GT(flawed, kSeeds / 20);
  EXPECT_LT(flawed, kSeeds * 19 / 20);
}

// Each thread asks for the tensors in another order, so that they sort them for each other.
TEST(StoredTablesTest, RanksArePlannedForAtOnceAndEachByItsOwnPreference) {
  constexpr uint64_t kTensors = 50;
  constexpr uint32_t kSlabs = 40;
  constexpr uint32_t kThreads = 4;
  StoredTables stored;
  std::vector<TensorSpec> targets;
  for (uint64_t t = 0; t < kTensors; ++t) {
    const std::string name = "w" + std::to_string(t);
    for (uint32_t slab = kSlabs; slab-- > 0;) {  // all have all of it
      const TensorSpec spec = Whole(name, {16}, slab, kSlabs);
      stored.Add({&spec, slab, 0, 64, t * 64});
    }
    targets.push_back(Spec(name, {16}, {3}, {9}));
  }
  std::vector<std::vector<PlanPiece>> plans(kThreads);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::vector<TensorSpec> wanted = targets;
      std::ranges::rotate(wanted, wanted.begin() + i * kTensors / kThreads);
      plans[i] = *PlanRestore(stored, wanted, std::vector<uint32_t>{i + 7});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(plans[i].size(), kTensors);
    for (const PlanPiece& piece : plans[i]) EXPECT_EQ(piece.source, i + 7);
  }
}

}  // namespace
}  // namespace unreft::recovery
