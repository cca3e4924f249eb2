#include "layout/capture_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/unit/layout_testing.h"

namespace unreft::layout {
namespace {

TensorTable Table(std::vector<TensorSpec> specs) {
  auto table = TensorTable::Create(std::move(specs));
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

TEST(ReplicaPartTest, RangesOfAllReplicasCoverTheShardOnce) {
  Random random(1);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t bytes =
        random.OneIn(2) ? random.Below(10000) : random.Next() >> (2 + random.Below(60));
    const auto count = static_cast<uint32_t>(1 + random.Below(random.OneIn(10) ? 300 : 9));
    const std::string name = std::to_string(random.Next());
    uint64_t at = 0;
    for (uint32_t index = 0; index < count; ++index) {
      const ByteRange range = ReplicaPart(bytes, index, count, name);
      ASSERT_LE(range.begin, range.end);
      if (range.begin == range.end) continue;
      ASSERT_EQ(range.begin, at) << bytes << " " << index << "/" << count;
      ASSERT_EQ(range.begin % kPartAlignment, 0u);
      at = range.end;
    }
    ASSERT_EQ(at, bytes) << count;
  }
}

TEST(ReplicaPartTest, PartsAreNearlyEqual) {
  for (const uint64_t bytes : {uint64_t{4096}, uint64_t{1} << 20, (uint64_t{1} << 62) - 1}) {
    for (uint32_t index = 0; index < 7; ++index) {
      const ByteRange range = ReplicaPart(bytes, index, 7, "w");
      EXPECT_NEAR(static_cast<double>(range.end - range.begin), static_cast<double>(bytes) / 7,
                  64 + static_cast<double>(bytes) * 1e-15);
    }
  }
}

// By the name alone, since replicas may be at different places in their ranks' tables.
TEST(ReplicaPartTest, SmallShardsAreNotCutAndAreDrawnEvenly) {
  std::array<int, 3> drawn{};
  for (int tensor = 0; tensor < 300; ++tensor) {
    const std::string name = "model/layers." + std::to_string(tensor) + ".norm.weight";
    int holders = 0;
    for (uint32_t index = 0; index < 3; ++index) {
      const ByteRange range = ReplicaPart(kSmallShardBytes - 1, index, 3, name);
      if (range.begin == range.end) continue;
      EXPECT_EQ(range.begin, 0u);
      EXPECT_EQ(range.end, kSmallShardBytes - 1);
      ++holders;
      ++drawn.at(index);
    }
    EXPECT_EQ(holders, 1) << name;
  }
  for (const int times : drawn) EXPECT_GT(times, 75);
}

TEST(CapturePlanTest, ReplicasAtDifferentPlacesDrawTheSameOne) {
  for (const uint64_t elements : {1, 1023, 1024}) {
    uint64_t captured = 0;
    for (uint32_t index = 0; index < 2; ++index) {
      std::vector<TensorSpec> specs;
      for (uint32_t i = 0; i < index; ++i) specs.push_back(Whole("own", {1}));
      specs.push_back(Whole("w", {elements}, index, 2));
      const CapturePlan plan = CapturePlan::Make(Table(specs), CaptureMode::kSharded);
      for (const CapturedPart& part : plan.parts()) {
        if (part.tensor == index) captured += part.bytes;
      }
    }
    EXPECT_EQ(captured, elements * DtypeBytes(Whole("w", {1}).dtype));
  }
}

TEST(CapturePlanTest, OfNoTensorsIsEmpty) {
  const CapturePlan plan = CapturePlan::Make(TensorTable(), CaptureMode::kSharded);
  EXPECT_TRUE(plan.parts().empty());
  EXPECT_EQ(plan.data_bytes(), 0u);
}

TEST(CapturePlanTest, LaysPartsOutInOrderAligned) {
  const auto table = Table({Whole("a", {3}), Whole("b", {2048}, 1, 2), Whole("c", {5}, 0, 2)});
  const CapturePlan full = CapturePlan::Make(table, CaptureMode::kFull);
  EXPECT_EQ(std::vector<CapturedPart>(full.parts().begin(), full.parts().end()),
            (std::vector<CapturedPart>{{0, 0, 12, 0}, {1, 0, 8192, 64}, {2, 0, 20, 8256}}));
  EXPECT_EQ(full.data_bytes(), 8276u);
  // Of b the second half; c is small and drawn to replica 0.
  const CapturePlan sharded = CapturePlan::Make(table, CaptureMode::kSharded);
  EXPECT_EQ(std::vector<CapturedPart>(sharded.parts().begin(), sharded.parts().end()),
            (std::vector<CapturedPart>{{0, 0, 12, 0}, {1, 4096, 4096, 64}, {2, 0, 20, 4160}}));
  EXPECT_EQ(sharded.data_bytes(), 4180u);
}

TEST(CapturePlanTest, DigestIsOfTableAndMode) {
  const auto one = Table({Whole("w", {2048}, 0, 2)});
  const auto other = Table({Whole("w", {2048}, 1, 2)});
  const auto different = Table({Whole("w", {2049}, 1, 2)});
  const auto digest = [](const TensorTable& table, CaptureMode mode) {
    return CapturePlan::Make(table, mode).digest();
  };
  EXPECT_NE(digest(one, CaptureMode::kSharded), digest(other, CaptureMode::kSharded));
  EXPECT_NE(digest(one, CaptureMode::kSharded), digest(one, CaptureMode::kFull));
  EXPECT_NE(digest(one, CaptureMode::kSharded), digest(different, CaptureMode::kSharded));
  EXPECT_EQ(digest(one, CaptureMode::kSharded), 0x315f6c0849945aebu) << "persistent";
}

TEST(CapturePlanTest, PartsOfAllReplicasHoldEveryByteOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const auto count = static_cast<uint32_t>(1 + random.Below(5));
    std::vector<TensorSpec> specs;
    specs.reserve(5);
    for (int t = 0; t < 5; ++t) {
      specs.push_back(Whole("t" + std::to_string(t), RandomShape(random, 3, 24), 0, count,
                            random.OneIn(2) ? Dtype::kInt8 : Dtype::kComplex128));
    }
    std::vector<std::vector<int>> seen;
    seen.reserve(specs.size());
    for (const TensorSpec& spec : specs) seen.emplace_back(ShardBytes(spec), 0);
    for (uint32_t index = 0; index < count; ++index) {
      for (TensorSpec& spec : specs) spec.replica_index = index;
      const CapturePlan plan = CapturePlan::Make(Table(specs), CaptureMode::kSharded);
      uint64_t slab_end = 0;
      for (const CapturedPart& part : plan.parts()) {
        EXPECT_EQ(part.slab_offset % kPartAlignment, 0u);
        EXPECT_EQ(part.shard_begin % DtypeBytes(specs[part.tensor].dtype), 0u);
        EXPECT_GE(part.slab_offset, slab_end);
        EXPECT_GT(part.bytes, 0u);
        slab_end = part.slab_offset + part.bytes;
        for (uint64_t i = 0; i < part.bytes; ++i) ++seen[part.tensor].at(part.shard_begin + i);
      }
      EXPECT_EQ(slab_end, plan.data_bytes());
    }
    for (const auto& bytes : seen) {
      for (const int times : bytes) ASSERT_EQ(times, 1) << seed;
    }
  }
}

}  // namespace
}  // namespace unreft::layout
