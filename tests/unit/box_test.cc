#include "layout/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/unit/layout_testing.h"

namespace unreft::layout {
namespace {

using ::testing::ElementsAre;

using CopyRun = std::tuple<uint64_t, uint64_t, uint64_t>;

std::vector<CopyRun> Runs(const Box& part, const Box& a, const Box& b) {
  std::vector<CopyRun> runs;
  uint64_t calls = 0;
  ForEachRows(part, a, b, [&](const Rows& rows) {
    ++calls;
    EXPECT_EQ(rows.count == 1, rows.a_pitch == 0 && rows.b_pitch == 0);
    for (uint64_t i = 0; i < rows.count; ++i) {
      runs.emplace_back(rows.a_begin + i * rows.a_pitch, rows.b_begin + i * rows.b_pitch,
                        rows.elements);
    }
  });
  EXPECT_EQ(calls, RowsOf(part, a, b));
  return runs;
}

Box RandomBoxIn(Random& random, const Dims& shape) {
  Box box;
  for (const uint64_t length : shape) {
    box.offset.push_back(random.Below(length));
    box.extent.push_back(1 + random.Below(length - box.offset.back()));
  }
  return box;
}

TEST(BoxTest, AScalarIsOneElement) {
  const Box scalar;
  EXPECT_EQ(scalar.elements(), 1u);
  EXPECT_EQ(Intersect(scalar, scalar), scalar);
  EXPECT_THAT(Runs(scalar, scalar, scalar), ElementsAre(CopyRun{0, 0, 1}));
}

TEST(BoxTest, IntersectsToTheCommonPartOrNone) {
  const Box a{{0, 4}, {4, 4}};
  EXPECT_EQ(Intersect(a, Box{{2, 0}, {8, 6}}), (Box{{2, 4}, {2, 2}}));
  EXPECT_EQ(Intersect(a, Box{{4, 4}, {1, 1}}), std::nullopt) << "touching is not common";
  EXPECT_EQ(Intersect(a, Box{{0, 8}, {4, 1}}), std::nullopt);
}

TEST(BoxTest, PrintsItself) {
  EXPECT_EQ(BoxText(Box{{0, 8}, {4, 8}}), "[0:4, 8:16)");
  EXPECT_EQ(BoxText(Box{}), "[)");
}

TEST(BoxTest, RowsThatFillBothArraysAreOneRun) {
  const Box a{{0, 0, 0}, {4, 3, 5}};
  EXPECT_THAT(Runs(a, a, a), ElementsAre(CopyRun{0, 0, 60}));
  // Rows 1 and 2 of the first dimension, whole in both.
  const Box b{{1, 0, 0}, {2, 3, 5}};
  EXPECT_THAT(Runs(b, a, b), ElementsAre(CopyRun{15, 0, 30}));
  // The middle dimension is whole in a alone: a run for each of the outer one.
  const Box c{{0, 1, 0}, {2, 2, 5}};
  EXPECT_THAT(Runs(c, a, c), ElementsAre(CopyRun{5, 0, 10}, CopyRun{20, 10, 10}));
}

TEST(BoxTest, RunsAreTheElementsInOrderAndMaximal) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Dims shape = RandomShape(random, 4, 5);
    const Box a = RandomBoxIn(random, shape);
    const Box b = RandomBoxIn(random, shape);
    const auto part = Intersect(a, b);
    size_t common = 0;
    ForEachElement(a, [&](const Dims& index) { common += Contains(b, index); });
    ASSERT_EQ(part ? part->elements() : 0, common) << seed;
    if (!part) continue;
    std::vector<std::pair<uint64_t, uint64_t>> expected;
    ForEachElement(*part, [&](const Dims& index) {
      ASSERT_TRUE(Contains(a, index) && Contains(b, index)) << seed;
      expected.emplace_back(PositionIn(a, index), PositionIn(b, index));
    });
    std::vector<std::pair<uint64_t, uint64_t>> found;
    const std::vector<CopyRun> runs = Runs(*part, a, b);
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto& [a_begin, b_begin, elements] = runs[i];
      for (uint64_t e = 0; e < elements; ++e) found.emplace_back(a_begin + e, b_begin + e);
      if (i == 0) continue;
      const auto& [a_last, b_last, last] = runs[i - 1];
      EXPECT_FALSE(a_last + last == a_begin && b_last + last == b_begin) << seed;
    }
    ASSERT_EQ(found, expected) << seed;
  }
}

TEST(BoxTest, ACutInOneDimensionIsRowsAtOneDistance) {
  const auto calls = [](const Box& part, const Dims& whole) {
    return RowsOf(part, Box{Dims(whole.size(), 0), whole}, part);
  };
  EXPECT_EQ(calls({{0, 4}, {1024, 4}}, {1024, 8}), 1u);
  EXPECT_EQ(calls({{0, 0, 4}, {16, 32, 4}}, {16, 32, 8}), 1u);
  EXPECT_EQ(calls({{0, 8, 0}, {16, 8, 8}}, {16, 32, 8}), 1u);
  // One element wide in the dimension between.
  EXPECT_EQ(calls({{0, 3, 4}, {16, 1, 4}}, {16, 32, 8}), 1u);
  // Cut in two dimensions: as many as the outer one is long.
  EXPECT_EQ(calls({{0, 8, 4}, {16, 8, 4}}, {16, 32, 8}), 16u);
}

TEST(BoxTest, FindsAnOverlapExactlyWhenThereIsOne) {
  int with = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Dims shape = RandomShape(random, 3, 6);
    std::vector<Box> boxes = RandomGrid(random, shape);
    if (random.OneIn(2)) boxes.push_back(RandomBoxIn(random, shape));
    if (random.OneIn(2))
      boxes.erase(boxes.begin() + static_cast<ptrdiff_t>(random.Below(boxes.size())));
    bool expected = false;
    for (size_t i = 0; i < boxes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) expected |= Intersect(boxes[i], boxes[j]).has_value();
    }
    const auto result = FindOverlap(boxes);
    ASSERT_TRUE(result.ok()) << result.status();
    const auto& found = *result;
    ASSERT_EQ(found.has_value(), expected) << seed;
    if (!found) continue;
    ++with;
    EXPECT_LT(found->first, found->second);
    EXPECT_TRUE(Intersect(boxes[found->first], boxes[found->second])) << seed;
  }
  EXPECT_GT(with, 200);
}

TEST(BoxTest, LooksForOverlapsWithoutComparingAllPairs) {
  // 200,000 shards of a tensor cut along its second dimension: 2 * 10^10 pairs.
  std::vector<Box> boxes;
  boxes.reserve(200001);
  for (uint64_t i = 0; i < 200000; ++i) boxes.push_back({{0, (i * 7919) % 200000}, {64, 1}});
  EXPECT_FALSE(*FindOverlap(boxes));
  boxes.push_back({{63, 5}, {1, 1}});
  EXPECT_TRUE(*FindOverlap(boxes));
}

// All reach to the end of the first dimension, which has as many beginnings as the second: half of
// 10^10 pairs, for a sweep along it.
TEST(BoxTest, LooksForOverlapsOfLongBoxesWithoutComparingAllPairs) {
  constexpr uint64_t kCount = 100000;
  std::vector<Box> boxes;
  for (uint64_t i = 0; i < kCount; ++i) boxes.push_back({{i, i}, {kCount - i, 1}});
  EXPECT_FALSE(*FindOverlap(boxes));
  boxes.push_back({{kCount - 1, 7}, {1, 1}});
  EXPECT_EQ(**FindOverlap(boxes), (BoxPair{7, kCount}));
}

TEST(BoxTest, LooksForOverlapsInAGridOfThreeDimensions) {
  constexpr uint64_t kSide = 40;
  std::vector<Box> boxes;
  for (uint64_t i = 0; i < kSide * kSide * kSide; ++i) {
    boxes.push_back(
        {{2 * (i % kSide), 2 * (i / kSide % kSide), 2 * (i / kSide / kSide)}, {2, 2, 2}});
  }
  EXPECT_FALSE(*FindOverlap(boxes));
  boxes.push_back({{41, 41, 40}, {2, 1, 1}});
  EXPECT_TRUE(*FindOverlap(boxes));
}

// Rods along three dimensions, each through the gaps between the others': each cut goes through
// many of them.
TEST(BoxTest, BoxesThatTakeTooLongAreRefusedWithTheirNumber) {
  constexpr uint64_t kSide = 300;
  std::vector<Box> boxes;
  for (uint64_t i = 0; i < kSide; ++i) {
    for (uint64_t j = 0; j < kSide; ++j) {
      boxes.push_back({{0, 2 * i, 2 * j}, {2 * kSide, 1, 1}});
      boxes.push_back({{2 * j + 1, 0, 2 * i + 1}, {1, 2 * kSide, 1}});
      boxes.push_back({{2 * i, 2 * j + 1, 0}, {1, 1, 2 * kSide}});
    }
  }
  const auto result = FindOverlap(boxes);
  EXPECT_TRUE(absl::IsResourceExhausted(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("270000 boxes"));
}

}  // namespace
}  // namespace unreft::layout
