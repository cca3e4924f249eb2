#include "durable/copy_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "layout/capture_plan.h"
#include "layout/tensor_table.h"
#include "tests/unit/layout_testing.h"

namespace unreft::durable {
namespace {

using layout::Box;
using layout::BoxOf;
using layout::CapturedPart;
using layout::CaptureMode;
using layout::SlotManifest;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SlotManifest ManifestOf(std::vector<TensorSpec> specs, CaptureMode mode = CaptureMode::kSharded,
                        uint64_t rank = 0) {
  auto table = layout::TensorTable::Create(std::move(specs));
  EXPECT_TRUE(table.ok()) << table.status();
  const auto plan = layout::CapturePlan::Make(*table, mode);
  SlotManifest manifest;
  manifest.rank = Rank{rank};
  manifest.world = rank + 1;
  manifest.capture_mode = mode;
  manifest.data_bytes = plan.data_bytes();
  manifest.tensors = {table->specs().begin(), table->specs().end()};
  manifest.parts = {plan.parts().begin(), plan.parts().end()};
  return manifest;
}

CopyPlan Planned(const SlotManifest& manifest, uint64_t item_bytes_max = kItemBytesMax) {
  auto plan = PlanCopy(manifest, item_bytes_max);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::vector<Box> BoxesOf(const CopyPlan& plan) {
  std::vector<Box> boxes;
  for (const CopyItem& item : plan.items) boxes.push_back(item.box);
  return boxes;
}

// A shard as its owner knows it, and the order of its dimensions in memory; the oracle's own words.
struct Shard {
  TensorSpec logical;
  std::vector<uint32_t> order;  // from the slowest to the fastest; empty: row-major
};

Dims Reordered(const Dims& numbers, const std::vector<uint32_t>& order) {
  if (order.empty()) return numbers;
  Dims reordered;
  for (const uint32_t dim : order) reordered.push_back(numbers[dim]);
  return reordered;
}

TensorSpec Stored(const Shard& shard) {
  TensorSpec spec = shard.logical;
  if (!shard.order.empty()) {
    spec.name += fmt::format("[memory_order={}]", fmt::join(shard.order, ","));
  }
  spec.global_shape = Reordered(spec.global_shape, shard.order);
  spec.offset = Reordered(spec.offset, shard.order);
  spec.extent = Reordered(spec.extent, shard.order);
  return spec;
}

uint64_t FlatIndex(const Dims& shape, const Dims& index) {
  return PositionIn(Box{Dims(shape.size(), 0), shape}, index);
}

// Where the bytes of each captured element begin in the slab: its tensor and its logical index.
using Slab = std::map<uint64_t, std::pair<std::string, uint64_t>>;

Slab SlabOf(const SlotManifest& manifest, const std::vector<Shard>& shards) {
  Slab slab;
  for (const CapturedPart& part : manifest.parts) {
    const Shard& shard = shards[part.tensor];
    const uint64_t element = DtypeBytes(shard.logical.dtype);
    uint64_t at = 0;  // in the shard, as it lies in memory
    ForEachElement(BoxOf(Stored(shard)), [&](const Dims& in_memory) {
      Dims index = in_memory;
      for (size_t i = 0; i < shard.order.size(); ++i) index[shard.order[i]] = in_memory[i];
      if (at >= part.shard_begin && at < part.shard_begin + part.bytes) {
        slab[part.slab_offset + at - part.shard_begin] = {
            shard.logical.name, FlatIndex(shard.logical.global_shape, index)};
      }
      at += element;
    });
  }
  return slab;
}

// Walks the items as a reader of the copy does, by logical box, sizes and strides alone, and takes
// out of the slab what it finds there.
void ExpectItemsAreTheSlab(const SlotManifest& manifest, const std::vector<Shard>& shards,
                           uint64_t item_bytes_max) {
  const CopyPlan plan = Planned(manifest, item_bytes_max);
  Slab slab = SlabOf(manifest, shards);
  uint64_t slab_end = 0;
  uint64_t file_end = 0;
  for (const CopyItem& item : plan.items) {
    const TensorSpec& spec = manifest.tensors[item.tensor];
    const TensorSpec& logical = shards[item.tensor].logical;
    const uint64_t element = DtypeBytes(spec.dtype);
    ASSERT_GT(item.bytes, 0u);
    ASSERT_LE(item.bytes, item_bytes_max);
    ASSERT_EQ(item.bytes, item.box.elements() * element);
    ASSERT_GE(item.slab_offset, slab_end);
    slab_end = item.slab_offset + item.bytes;
    const ArchiveTensor archive = ArchiveOf(spec, item.box);
    ASSERT_EQ(item.at, file_end);
    ASSERT_EQ(item.archive_bytes,
              ArchiveHead(archive).size() + item.bytes + ArchiveTail(archive, 1).size());
    file_end += item.archive_bytes;
    const Box box = LogicalBoxOf(spec, item.box);
    ASSERT_EQ(archive.dtype, spec.dtype);
    ASSERT_EQ(archive.sizes, box.extent);
    ASSERT_EQ(ArchiveDataBytes(archive), item.bytes) << "dense, in whichever order";
    ASSERT_EQ(box.offset.size(), logical.global_shape.size());
    ForEachElement(box, [&](const Dims& index) {
      ASSERT_TRUE(Contains(BoxOf(logical), index));
      uint64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        at += (index[d] - box.offset[d]) * archive.strides[d];
      }
      const auto found = slab.find(item.slab_offset + at * element);
      ASSERT_NE(found, slab.end()) << "not captured there, or copied twice";
      ASSERT_EQ(found->second, std::pair(logical.name, FlatIndex(logical.global_shape, index)));
      slab.erase(found);
    });
  }
  EXPECT_EQ(plan.file_bytes, file_end);
  EXPECT_THAT(slab, IsEmpty()) << "captured, and not copied";
}

constexpr uint64_t kRanks = 3;

// Of each rank: shards of tensors of any shape, dtype and order, with up to kRanks replicas.
std::vector<std::vector<Shard>> RandomWorld(Random& random) {
  std::vector<std::vector<Shard>> ranks(kRanks);
  for (int t = 0; t < 4; ++t) {
    const Dims shape = random.OneIn(3) ? RandomShape(random, 2, 60) : RandomShape(random, 4, 6);
    std::vector<uint32_t> order;
    if (random.OneIn(2)) {
      order.resize(shape.size());
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    }
    const Dtype dtypes[] = {Dtype::kInt8, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kComplex128};
    const Dtype dtype = dtypes[random.Below(std::size(dtypes))];
    const auto replicas = static_cast<uint32_t>(1 + random.Below(kRanks));
    for (const Box& box : RandomShards(random, shape)) {
      const uint64_t first = random.Below(kRanks);
      for (uint32_t replica = 0; replica < replicas; ++replica) {
        ranks[(first + replica) % kRanks].push_back(
            {Spec(fmt::format("t{}", t), shape, box.offset, box.extent, replica, replicas, dtype),
             order});
      }
    }
  }
  return ranks;
}

std::vector<TensorSpec> StoredOf(const std::vector<Shard>& shards) {
  std::vector<TensorSpec> specs;
  for (const Shard& shard : shards) specs.push_back(Stored(shard));
  return specs;
}

TEST(CopyPlanTest, EveryCapturedElementIsCopiedOnceToWhereItBelongs) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    for (const std::vector<Shard>& shards : RandomWorld(random)) {
      const SlotManifest manifest = ManifestOf(StoredOf(shards));
      for (const uint64_t most :
           {uint64_t{16}, 16 + random.Below(100), 16 + random.Below(5000), kItemBytesMax}) {
        SCOPED_TRACE(fmt::format("seed {}, at most {} bytes", seed, most));
        ASSERT_NO_FATAL_FAILURE(ExpectItemsAreTheSlab(manifest, shards, most));
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

// All ranks together: each element of each tensor once, whoever captured it.
TEST(CopyPlanTest, ItemsOfAllRanksAreAllTensorsOnceInEitherMode) {
  for (const CaptureMode mode : {CaptureMode::kSharded, CaptureMode::kFull}) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Random random(seed);
      std::map<std::string, uint64_t> needed;  // elements, by logical name
      std::map<std::pair<std::string, Dims>, int> times;
      for (const std::vector<Shard>& shards : RandomWorld(random)) {
        for (const Shard& shard : shards) {
          const Dims& shape = shard.logical.global_shape;
          needed[shard.logical.name] = ShardElements(Whole("w", shape));
        }
        const SlotManifest manifest = ManifestOf(StoredOf(shards), mode);
        for (const CopyItem& item : Planned(manifest, 64 + random.Below(1000)).items) {
          const Box box = LogicalBoxOf(manifest.tensors[item.tensor], item.box);
          const std::string& name = shards[item.tensor].logical.name;
          ForEachElement(box, [&](const Dims& index) { ++times[{name, index}]; });
        }
      }
      uint64_t all = 0;
      for (const auto& [name, elements] : needed) all += elements;
      ASSERT_EQ(times.size(), all) << seed;
      for (const auto& [element, count] : times) ASSERT_EQ(count, 1) << seed;
    }
  }
}

TEST(CopyPlanTest, OfNothingIsEmpty) {
  const CopyPlan plan = Planned(ManifestOf({}));
  EXPECT_THAT(plan.items, IsEmpty());
  EXPECT_EQ(plan.file_bytes, 0u);
}

TEST(CopyPlanTest, AShardThatFitsIsOneItem) {
  const TensorSpec shard = Spec("w", {8, 8}, {2, 3}, {4, 5});
  const CopyPlan plan = Planned(ManifestOf({Whole("a", {3}), shard}), 80);
  ASSERT_THAT(plan.items, SizeIs(2));
  EXPECT_EQ(plan.items[1].tensor, 1u);
  EXPECT_EQ(plan.items[1].box, BoxOf(shard));
  EXPECT_EQ(plan.items[1].slab_offset, 64u);
  EXPECT_EQ(plan.items[1].bytes, 80u);
  EXPECT_EQ(plan.items[1].at, plan.items[0].archive_bytes);
}

TEST(CopyPlanTest, AScalarIsOneItemWithoutDimensions) {
  const SlotManifest manifest = ManifestOf({Whole("step", {}, 0, 1, Dtype::kFloat64)});
  for (const uint64_t most : {uint64_t{8}, kItemBytesMax}) {
    const CopyPlan plan = Planned(manifest, most);
    ASSERT_THAT(plan.items, SizeIs(1));
    EXPECT_EQ(plan.items[0].box, Box{});
    EXPECT_EQ(plan.items[0].bytes, 8u);
    EXPECT_EQ(LogicalBoxOf(manifest.tensors[0], plan.items[0].box), Box{});
    EXPECT_THAT(ArchiveOf(manifest.tensors[0], plan.items[0].box).sizes, IsEmpty());
  }
}

TEST(CopyPlanTest, IsCutAtWholeIndicesOfTheOutermostDimensionWhereOneFits) {
  const SlotManifest manifest = ManifestOf({Whole("w", {5, 5})});
  // Eleven elements would fit: two rows of five do.
  EXPECT_EQ(BoxesOf(Planned(manifest, 47)),
            (std::vector<Box>{{{0, 0}, {2, 5}}, {{2, 0}, {2, 5}}, {{4, 0}, {1, 5}}}));
  // No row fits.
  EXPECT_EQ(BoxesOf(Planned(ManifestOf({Whole("w", {1, 5})}), 12)),
            (std::vector<Box>{{{0, 0}, {1, 3}}, {{0, 3}, {1, 2}}}));
}

TEST(CopyPlanTest, OneElementIsTheLeastThatAnItemMayHave) {
  const CopyPlan plan = Planned(ManifestOf({Whole("w", {2, 3})}), 4);
  ASSERT_THAT(plan.items, SizeIs(6));
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(plan.items[i].box, (Box{{i / 3, i % 3}, {1, 1}}));
    EXPECT_EQ(plan.items[i].slab_offset, 4 * i);
  }
}

// A replica's part begins within a row: what is before the next whole row is an item of its own.
TEST(CopyPlanTest, APartThatBeginsWithinARowIsHeadRowsAndTail) {
  const SlotManifest manifest = ManifestOf({Whole("w", {30, 50}, 1, 3)});
  ASSERT_EQ(manifest.parts, (std::vector<CapturedPart>{{0, 2048, 1984, 0}}));
  // Elements 512 to 1007.
  EXPECT_EQ(BoxesOf(Planned(manifest)),
            (std::vector<Box>{{{10, 12}, {1, 38}}, {{11, 0}, {9, 50}}, {{20, 0}, {1, 8}}}));
  // By two rows at most: cut where items of the whole shard would be.
  EXPECT_EQ(BoxesOf(Planned(manifest, 400)), (std::vector<Box>{{{10, 12}, {1, 38}},
                                                               {{11, 0}, {1, 50}},
                                                               {{12, 0}, {2, 50}},
                                                               {{14, 0}, {2, 50}},
                                                               {{16, 0}, {2, 50}},
                                                               {{18, 0}, {2, 50}},
                                                               {{20, 0}, {1, 8}}}));
}

TEST(CopyPlanTest, OfWhatEveryReplicaCapturedTheFirstOnesIsCopied) {
  const auto specs = [](uint32_t replica) {
    return std::vector<TensorSpec>{Whole("own", {3}), Whole("w", {2048}, replica, 2)};
  };
  EXPECT_THAT(Planned(ManifestOf(specs(0), CaptureMode::kFull)).items, SizeIs(2));
  const CopyPlan second = Planned(ManifestOf(specs(1), CaptureMode::kFull));
  ASSERT_THAT(second.items, SizeIs(1));
  EXPECT_EQ(second.items[0].tensor, 0u);
  EXPECT_EQ(second.file_bytes, second.items[0].archive_bytes);
  EXPECT_THAT(Planned(ManifestOf(specs(1))).items, SizeIs(2)) << "half of it, where it was cut";
}

TEST(CopyPlanTest, APermutedTensorHasItsLogicalBoxAndTheStridesOfItsBytes) {
  const TensorSpec matrix = Whole("w[memory_order=1,0]", {3, 2});
  const Box rows{{1, 0}, {2, 2}};
  EXPECT_EQ(LogicalBoxOf(matrix, rows), (Box{{0, 1}, {2, 2}}));
  EXPECT_EQ(ArchiveOf(matrix, BoxOf(matrix)).sizes, (Dims{2, 3}));
  EXPECT_EQ(ArchiveOf(matrix, BoxOf(matrix)).strides, (Dims{1, 2}));
  const TensorSpec images = Whole("conv.weight[memory_order=0,2,3,1]", {64, 3, 5, 7});
  EXPECT_EQ(ArchiveOf(images, BoxOf(images)).sizes, (Dims{64, 7, 3, 5}));
  EXPECT_EQ(ArchiveOf(images, BoxOf(images)).strides, (Dims{105, 1, 35, 7}));
  EXPECT_EQ(LogicalBoxOf(images, {{1, 2, 3, 4}, {1, 1, 2, 3}}), (Box{{1, 4, 2, 3}, {1, 3, 1, 2}}));
}

TEST(CopyPlanTest, ANameThatSaysNoOrderIsRowMajor) {
  for (const char* name : {"w[memory_order=0,0]", "w[memory_order=2,0]", "w[memory_order=]",
                           "w[memory_order=1,0] ", "w[memory_order=1,0,2]"}) {
    const TensorSpec spec = Whole(name, {3, 2});
    EXPECT_EQ(LogicalBoxOf(spec, BoxOf(spec)), BoxOf(spec)) << name;
    EXPECT_EQ(ArchiveOf(spec, BoxOf(spec)).strides, (Dims{2, 1})) << name;
  }
}

TEST(CopyPlanTest, AManifestThatContradictsItselfIsDataLossWithRankAndTensor) {
  const auto refused = [](const SlotManifest& manifest, const std::string& message) {
    const absl::Status status = PlanCopy(manifest).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 3"), HasSubstr(message)));
  };
  const SlotManifest good = ManifestOf({Whole("w", {4, 4})}, CaptureMode::kSharded, 3);
  ASSERT_TRUE(PlanCopy(good).ok());
  const CapturedPart parts[] = {{0, 4, 64, 0},          {0, 0, 68, 0},        {0, 68, 4, 0},
                                {0, 2, 8, 0},           {0, 0, 6, 0},         {0, 0, 0, 0},
                                {0, UINT64_MAX, 64, 0}, {0, 0, UINT64_MAX, 0}};
  for (const CapturedPart& part : parts) {
    SlotManifest manifest = good;
    manifest.parts = {part};
    refused(manifest, fmt::format("found {} bytes from byte {}", part.bytes, part.shard_begin));
    refused(manifest, "'w'");
  }
  SlotManifest manifest = good;
  manifest.parts[0].tensor = 1;
  refused(manifest, "a part of tensor 1, found 1");
  manifest = good;
  manifest.tensors[0].extent = {0, 4};
  refused(manifest, "'w'");
  manifest = good;
  manifest.tensors[0].dtype = Dtype{99};
  refused(manifest, "'w'");
  manifest = good;
  manifest.tensors[0].global_shape = {3, 4};
  refused(manifest, "'w'");
}

}  // namespace
}  // namespace unreft::durable
