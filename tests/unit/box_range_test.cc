#include "layout/box_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/layout_testing.h"

namespace unreft::layout {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A box of the tensor, anywhere in it.
TensorSpec RandomShard(Random& random) {
  const Dims shape = RandomShape(random, 5, 5);
  TensorSpec shard = Whole("w", shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    shard.offset[d] = random.Below(shape[d]);
    shard.extent[d] = 1 + random.Below(shape[d] - shard.offset[d]);
  }
  return shard;
}

std::vector<Dims> ElementsOf(const Box& box) {
  std::vector<Dims> elements;
  ForEachElement(box, [&](const Dims& index) { elements.push_back(index); });
  return elements;
}

void ExpectDivided(const TensorSpec& shard, uint64_t begin, uint64_t end) {
  const std::vector<Dims> all = ElementsOf(BoxOf(shard));
  const auto parts = DivideRange(shard, begin, end);
  ASSERT_TRUE(parts.ok()) << parts.status();
  std::vector<Dims> found;
  for (const RangePart& part : *parts) {
    ASSERT_EQ(part.begin, found.size());
    std::ranges::copy(ElementsOf(part.box), std::back_inserter(found));
  }
  const auto expected = std::ranges::subrange(all.begin() + static_cast<ptrdiff_t>(begin),
                                              all.begin() + static_cast<ptrdiff_t>(end));
  ASSERT_TRUE(std::ranges::equal(found, expected)) << begin << " to " << end;
  const size_t dims = shard.extent.size();
  ASSERT_LE(parts->size(), dims == 0 ? 1 : 2 * dims - 1) << begin << " to " << end;
}

void ExpectRefused(const TensorSpec& shard, uint64_t begin, uint64_t end,
                   const std::string& message) {
  const absl::Status status = DivideRange(shard, begin, end).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'w'"), HasSubstr(message)));
}

TEST(BoxRangeTest, IsHeadRowsAndTail) {
  EXPECT_THAT(*DivideRange(Whole("w", {4, 5}), 3, 17),
              ElementsAre(RangePart{{{0, 3}, {1, 2}}, 0}, RangePart{{{1, 0}, {2, 5}}, 2},
                          RangePart{{{3, 0}, {1, 2}}, 12}));
}

TEST(BoxRangeTest, IsTheBoxItselfNothingOrARow) {
  const TensorSpec shard = Spec("w", {8, 8, 8}, {2, 3, 4}, {2, 3, 4});
  EXPECT_THAT(*DivideRange(shard, 0, 24), ElementsAre(RangePart{BoxOf(shard), 0}));
  EXPECT_THAT(*DivideRange(shard, 4, 8), ElementsAre(RangePart{{{2, 4, 4}, {1, 1, 4}}, 0}));
  for (const uint64_t at : {0, 7, 24}) EXPECT_THAT(*DivideRange(shard, at, at), IsEmpty());
  EXPECT_THAT(*DivideRange(Whole("w", {}), 0, 1), ElementsAre(RangePart{Box{}, 0}));
  EXPECT_THAT(*DivideRange(Whole("w", {}), 1, 1), IsEmpty());
}

TEST(BoxRangeTest, EveryRangeOfDrawnBoxesIsItsElementsInOrder) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const TensorSpec shard = RandomShard(random);
    const uint64_t elements = ShardElements(shard);
    if (elements <= 40) {
      for (uint64_t begin = 0; begin <= elements; ++begin) {
        for (uint64_t end = begin; end <= elements; ++end) {
          ASSERT_NO_FATAL_FAILURE(ExpectDivided(shard, begin, end));
        }
      }
    }
    for (int i = 0; i < 20; ++i) {
      const uint64_t begin = random.Below(elements + 1);
      const uint64_t end = begin + random.Below(elements - begin + 1);
      ASSERT_NO_FATAL_FAILURE(ExpectDivided(shard, begin, end));
    }
  }
}

TEST(BoxRangeTest, NoNumberOverflows) {
  constexpr uint64_t kHuge = uint64_t{1} << 58;
  const TensorSpec shard =
      Spec("w", {UINT64_MAX, UINT64_MAX}, {UINT64_MAX - 2, UINT64_MAX - kHuge}, {2, kHuge});
  EXPECT_THAT(*DivideRange(shard, kHuge - 1, 2 * kHuge),
              ElementsAre(RangePart{{{UINT64_MAX - 2, UINT64_MAX - 1}, {1, 1}}, 0},
                          RangePart{{{UINT64_MAX - 1, UINT64_MAX - kHuge}, {1, kHuge}}, 1}));
  ExpectRefused(shard, 0, 2 * kHuge + 1, std::to_string(2 * kHuge));
  ExpectRefused(Whole("w", {UINT64_MAX, UINT64_MAX}), 0, 1, "needs less than");
}

TEST(BoxRangeTest, RefusesWhatIsNoRangeOfTheBoxWithTheNumbers) {
  const TensorSpec shard = Spec("w", {9, 9}, {2, 3}, {4, 5});
  ExpectRefused(shard, 3, 21,
                "needs 0 <= begin <= end <= 20, the elements of the box [2:6, 3:8), found begin 3 "
                "and end 21");
  ExpectRefused(shard, 5, 4, "found begin 5 and end 4");
  ExpectRefused(shard, UINT64_MAX, UINT64_MAX, "<= 20");
  ExpectRefused(Whole("w", {4, 0}), 0, 0, "needs extent >= 1 in dimension 1, found 0");
  ExpectRefused(Whole("w", {4}, 2, 2), 0, 4, "replica index 2");
}

// As the flat buffer of all ranks of a large job: rows of one tensor that are longer than a rank's
// part, and far shorter.
TEST(BoxRangeTest, OverlapsAmongTheRangesOfManyRanksAreFoundQuickly) {
  constexpr uint64_t kRanks = 20000;
  for (const Dims& shape : {Dims{3, 1000003}, Dims{1000003, 3}, Dims{101, 103, 107}}) {
    const TensorSpec whole = Whole("w", shape);
    const uint64_t elements = ShardElements(whole);
    std::vector<Box> boxes;
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      const uint64_t begin = elements * rank / kRanks;
      const auto parts = DivideRange(whole, begin, elements * (rank + 1) / kRanks);
      ASSERT_TRUE(parts.ok()) << parts.status();
      for (const RangePart& part : *parts) boxes.push_back(part.box);
    }
    auto overlap = FindOverlap(boxes);
    ASSERT_TRUE(overlap.ok()) << overlap.status();
    EXPECT_FALSE(*overlap);
    boxes.push_back(Box{Dims(shape.size(), 2), Dims(shape.size(), 1)});
    overlap = FindOverlap(boxes);
    ASSERT_TRUE(overlap.ok()) << overlap.status();
    EXPECT_TRUE(*overlap);
  }
}

}  // namespace
}  // namespace unreft::layout
