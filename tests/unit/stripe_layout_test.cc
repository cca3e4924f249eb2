#include "ec/stripe_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/random.h"

namespace unreft::ec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<CodeShape> AllShapes() {
  std::vector<CodeShape> shapes;
  for (uint32_t k = 1; k <= kDataChunksMax; ++k) {
    for (uint32_t m = 0; m <= kParityChunksMax; ++m) shapes.push_back({k, m});
  }
  return shapes;
}

StripeLayout LayoutOf(CodeShape shape, std::vector<uint64_t> blocks) {
  return *StripeLayout::Make(shape, std::move(blocks));
}

// Members of different size, some of them with no block.
StripeLayout RandomLayout(CodeShape shape, Random& random) {
  std::vector<uint64_t> blocks(shape.n());
  for (uint64_t& count : blocks) count = random.OneIn(5) ? 0 : random.Below(4 * shape.k + 3);
  return LayoutOf(shape, std::move(blocks));
}

// The picture in the header.
TEST(StripeLayout, RotatesTheRoles) {
  const StripeLayout layout = LayoutOf({2, 2}, {5, 5, 5, 5});
  const auto members = [&](uint32_t stripe) {
    std::vector<uint32_t> result;
    for (uint32_t chunk = 0; chunk < 4; ++chunk) result.push_back(layout.MemberOf(stripe, chunk));
    return result;
  };
  EXPECT_THAT(members(0), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(members(1), ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(members(2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(members(3), ElementsAre(1, 2, 3, 0));
  EXPECT_EQ(layout.Aggregator(3), 3u);
  EXPECT_EQ(layout.positions(), 3u);
  EXPECT_EQ(layout.CellOf(0, 0), (Cell{.stripe = 2, .chunk = 0, .position = 0}));
  EXPECT_EQ(layout.CellOf(0, 1), (Cell{.stripe = 1, .chunk = 1, .position = 0}));
  EXPECT_EQ(layout.CellOf(0, 4), (Cell{.stripe = 2, .chunk = 0, .position = 2}));
  EXPECT_EQ(layout.BlockAt(2, 0, 2), 4u);
  EXPECT_EQ(layout.BlockAt(1, 1, 2), std::nullopt) << "member 0 has no block 5";
  EXPECT_THAT(layout.ParityStripes(0), ElementsAre(0, 3));
}

TEST(StripeLayout, EveryStripeHasEveryMemberOnce) {
  for (const CodeShape shape : AllShapes()) {
    const StripeLayout layout = LayoutOf(shape, std::vector<uint64_t>(shape.n(), 1));
    for (uint32_t stripe = 0; stripe < layout.stripes(); ++stripe) {
      std::set<uint32_t> members;
      for (uint32_t chunk = 0; chunk < shape.n(); ++chunk) {
        members.insert(layout.MemberOf(stripe, chunk));
      }
      ASSERT_EQ(members.size(), shape.n());
      ASSERT_LT(*members.rbegin(), shape.n());
    }
  }
}

TEST(StripeLayout, EveryMemberHasEveryRoleOnce) {
  for (const CodeShape shape : AllShapes()) {
    const StripeLayout layout = LayoutOf(shape, std::vector<uint64_t>(shape.n(), 1));
    for (uint32_t chunk = 0; chunk < shape.n(); ++chunk) {
      std::set<uint32_t> members;
      for (uint32_t s = 0; s < layout.stripes(); ++s) members.insert(layout.MemberOf(s, chunk));
      ASSERT_EQ(members.size(), shape.n()) << "k sources and m parities each";
    }
    for (uint32_t member = 0; member < shape.n(); ++member) {
      const std::vector<uint32_t> stripes = layout.ParityStripes(member);
      ASSERT_EQ(stripes.size(), shape.m);
      for (uint32_t p = 0; p < shape.m; ++p) {
        ASSERT_EQ(layout.MemberOf(stripes[p], shape.k + p), member);
      }
    }
  }
}

TEST(StripeLayout, EveryBlockHasACellOfItsOwn) {
  for (const CodeShape shape : AllShapes()) {
    Random random(shape.k * 100 + shape.m);
    const StripeLayout layout = RandomLayout(shape, random);
    std::set<std::tuple<uint32_t, uint32_t, uint64_t>> cells;
    for (uint32_t member = 0; member < layout.members(); ++member) {
      for (uint64_t block = 0; block < layout.member_blocks(member); ++block) {
        const Cell cell = layout.CellOf(member, block);
        ASSERT_LT(cell.chunk, shape.k);
        ASSERT_LT(cell.position, layout.positions());
        ASSERT_EQ(layout.MemberOf(cell.stripe, cell.chunk), member);
        ASSERT_EQ(layout.BlockAt(cell.stripe, cell.chunk, cell.position), block);
        ASSERT_TRUE(cells.emplace(cell.stripe, cell.chunk, cell.position).second);
      }
    }
    // And the other way: every other cell is zeros that are nowhere.
    for (uint32_t stripe = 0; stripe < layout.stripes(); ++stripe) {
      for (uint32_t chunk = 0; chunk < shape.k; ++chunk) {
        for (uint64_t position = 0; position < layout.positions(); ++position) {
          ASSERT_EQ(layout.BlockAt(stripe, chunk, position).has_value(),
                    cells.contains({stripe, chunk, position}));
        }
      }
    }
  }
}

// The members are enough: any m of them lost leave k chunks of every stripe.
TEST(StripeLayout, SurvivesTheLossOfAnyMMembers) {
  for (const CodeShape shape : AllShapes()) {
    Random random(shape.k * 100 + shape.m);
    const StripeLayout layout = RandomLayout(shape, random);
    for (int i = 0; i < 20; ++i) {
      std::set<uint32_t> lost;
      while (lost.size() < shape.m) {
        lost.insert(static_cast<uint32_t>(random.Below(layout.members())));
      }
      for (uint32_t stripe = 0; stripe < layout.stripes(); ++stripe) {
        uint32_t left = 0;
        for (uint32_t chunk = 0; chunk < shape.n(); ++chunk) {
          left += lost.contains(layout.MemberOf(stripe, chunk)) ? 0 : 1;
        }
        ASSERT_EQ(left, shape.k);
      }
    }
  }
}

// Encoding can run along with the capture.
TEST(StripeLayout, TheFirstKBlocksOfAllCompleteTheFirstPosition) {
  for (const CodeShape shape : AllShapes()) {
    const StripeLayout layout = LayoutOf(shape, std::vector<uint64_t>(shape.n(), 3 * shape.k));
    for (uint32_t member = 0; member < layout.members(); ++member) {
      std::set<uint32_t> stripes;
      for (uint64_t block = 0; block < shape.k; ++block) {
        ASSERT_EQ(layout.CellOf(member, block).position, 0u);
        stripes.insert(layout.CellOf(member, block).stripe);
      }
      ASSERT_EQ(stripes.size(), shape.k) << "one block for each stripe";
    }
  }
}

TEST(StripeLayout, TheLargestMemberDecidesTheLength) {
  EXPECT_EQ(LayoutOf({4, 2}, {0, 0, 0, 0, 0, 0}).positions(), 0u);
  EXPECT_EQ(LayoutOf({4, 2}, {0, 0, 1, 0, 0, 0}).positions(), 1u);
  EXPECT_EQ(LayoutOf({4, 2}, {3, 8, 1, 0, 2, 5}).positions(), 2u);
  EXPECT_EQ(LayoutOf({4, 2}, {3, 9, 1, 0, 2, 5}).positions(), 3u);
  EXPECT_EQ(LayoutOf({1, 0}, {UINT64_MAX}).positions(), UINT64_MAX);
  EXPECT_EQ(LayoutOf({2, 0}, {UINT64_MAX, 0}).positions(), (UINT64_MAX >> 1) + 1);
}

TEST(StripeLayout, RefusesWhatCannotBeWithNumbers) {
  const absl::Status count = StripeLayout::Make({4, 2}, {1, 2, 3}).status();
  EXPECT_EQ(count.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(count.message()), HasSubstr("6 members is needed, 3 are given"));
  const absl::Status shape = StripeLayout::Make({0, 2}, {1, 2}).status();
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()), HasSubstr("k must be 1..32"));
  EXPECT_FALSE(StripeLayout::Make({1, UINT32_MAX}, {}).ok());
}

TEST(StripeLayoutDeathTest, WhatIsOutsideIsACheck) {
  const StripeLayout layout = LayoutOf({2, 1}, {4, 3, 0});
  EXPECT_DEATH((void)layout.CellOf(1, 3), "block 3 of 3 of member 1");
  EXPECT_DEATH((void)layout.CellOf(3, 0), "member 3 of 3");
  EXPECT_DEATH((void)layout.BlockAt(0, 2, 0), "data chunk 2 of 2");
  EXPECT_DEATH((void)layout.BlockAt(0, 0, 2), "position 2 of 2");
  EXPECT_DEATH((void)layout.MemberOf(3, 0), "stripe 3");
}

}  // namespace
}  // namespace unreft::ec
