// What coding works in: tiles that do not touch, memory that is used again, and a share for each
// purpose.

#include "smp/memory/tile_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

constexpr uint64_t kTileBytes = 1 << 16;
constexpr size_t kEncoding = TilePool::kSetsKept + 3;
constexpr size_t kDecoding = 2;

class TilePoolTest : public SmpFixture {
 protected:
  // A set that is to be had now.
  TileSet Take(size_t tiles, uint64_t bytes, TilePurpose purpose = TilePurpose::kEncoding) {
    TileSet taken;
    pool_->Take(purpose, tiles, bytes, [&taken](TileSet set) { taken = std::move(set); });
    UNREFT_CHECK(static_cast<bool>(taken));
    return taken;
  }
  // Asks for one for decoding; `number` is noted when it is had.
  void Ask(int number) {
    pool_->Take(TilePurpose::kDecoding, 1, kTileBytes, [this, number](TileSet set) {
      had_.push_back(number);
      decoding_.push_back(std::move(set));
    });
  }

  std::unique_ptr<TilePool> pool_ =
      std::make_unique<TilePool>(*executor_, TileShares{kEncoding, kDecoding});
  std::vector<int> had_;
  std::vector<TileSet> decoding_;
};

TEST_F(TilePoolTest, TilesOfASetDoNotTouch) {
  for (const uint64_t bytes : {uint64_t{64}, kTileBytes}) {
    const TileSet set = Take(4, bytes);
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(set[i].size(), bytes);
      std::ranges::fill(set[i], std::byte(i));
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(std::ranges::all_of(set[i], [&](std::byte byte) { return byte == std::byte(i); }))
          << "tile " << i << " of " << bytes;
    }
  }
}

TEST_F(TilePoolTest, WhatWasReturnedIsTakenAgainAsItIs) {
  std::byte* memory = nullptr;
  {
    const TileSet set = Take(3, kTileBytes);
    memory = set[0].data();
    set[2][7] = std::byte{42};
  }
  const TileSet other_size = Take(2, kTileBytes);
  EXPECT_NE(other_size[0].data(), memory);
  const TileSet set = Take(3, kTileBytes);
  EXPECT_EQ(set[0].data(), memory);
  EXPECT_EQ(set[2][7], std::byte{42}) << "it was zeroed";
}

TEST_F(TilePoolTest, NoMoreIsKeptThanItSays) {
  std::set<std::byte*> first;
  {
    std::vector<TileSet> sets;
    for (size_t i = 0; i < kEncoding; ++i) {
      sets.push_back(Take(1, kTileBytes));
      EXPECT_TRUE(first.insert(sets.back()[0].data()).second) << "taken twice";
    }
  }
  // Others stand between the kept ones and what the allocator would give again.
  std::vector<std::unique_ptr<std::byte[]>> others;
  for (size_t i = 0; i < kEncoding; ++i) {
    others.push_back(std::make_unique<std::byte[]>(2 * kTileBytes));
  }
  std::vector<TileSet> sets;
  for (size_t i = 0; i < TilePool::kSetsKept; ++i) {
    sets.push_back(Take(1, kTileBytes));
    EXPECT_TRUE(first.contains(sets.back()[0].data())) << i;
  }
}

// Of sets of the size before, those of the new size were given back each time.
TEST_F(TilePoolTest, WhatIsKeptIsOfTheSizeThatWasUsedLast) {
  for (const size_t tiles : {3, 2}) {
    std::set<std::byte*> first;
    for (int round = 0; round < 2; ++round) {
      std::vector<TileSet> sets;
      for (size_t i = 0; i < TilePool::kSetsKept; ++i) {
        sets.push_back(Take(tiles, kTileBytes));
        EXPECT_EQ(first.insert(sets.back()[0].data()).second, round == 0);
      }
    }
  }
}

TEST_F(TilePoolTest, ASetOutlivesItsPool) {
  TileSet set = Take(2, kTileBytes);
  pool_.reset();
  std::ranges::fill(set[1], std::byte{1});
  set = TileSet();
}

TEST_F(TilePoolTest, DecodingHasItsShareWhileAllOtherTilesAreHeld) {
  std::vector<TileSet> held;
  for (size_t i = 0; i < kEncoding; ++i) held.push_back(Take(4, kTileBytes));
  bool had = false;
  pool_->Take(TilePurpose::kEncoding, 4, kTileBytes, [&had](TileSet) { had = true; });
  for (int number = 0; number < static_cast<int>(kDecoding); ++number) Ask(number);
  EXPECT_EQ(had_, (std::vector{0, 1}));
  Settle();
  EXPECT_FALSE(had) << "more are in use than the share";
}

TEST_F(TilePoolTest, WhoWaitsIsServedInOrderAsSetsAreReturned) {
  for (const int number : {0, 1, 2, 3}) Ask(number);
  Settle();
  EXPECT_EQ(had_, (std::vector{0, 1}));
  // One is returned; who asks then comes behind those who wait.
  decoding_.pop_back();
  Ask(4);
  Settle();
  EXPECT_EQ(had_, (std::vector{0, 1, 2}));
  decoding_.clear();
  Settle();
  EXPECT_EQ(had_, (std::vector{0, 1, 2, 3, 4}));
}

TEST_F(TilePoolTest, NobodyIsServedByAPoolThatIsGone) {
  for (const int number : {0, 1, 2}) Ask(number);
  decoding_.clear();
  pool_.reset();
  Settle();
  EXPECT_EQ(had_, (std::vector{0, 1}));
}

TEST(TileSharesTest, EveryGuardMayHaveAWindowOfEachOfItsLanes) {
  NodeOptions options;
  options.slots_per_rank = 2;
  options.pins = 1;
  options.parity_chunks = 2;
  options.protect_window = 4;
  const TileShares shares = TileSharesOf(options);
  EXPECT_EQ(shares.encoding, 3U * 2 * 4 + 4);
  EXPECT_EQ(shares.decoding, 16U);
}

// As docs/operations.md has it.
TEST(TileSharesTest, WhatTheyTakeIsByTheLargestGroup) {
  NodeOptions options;
  options.nodes = 4;
  options.data_chunks = 2;
  options.parity_chunks = 2;
  EXPECT_EQ(ScratchBytes(options), uint64_t{112 + 32} << 20);
  options.nodes = 7;  // of RS(5,2)
  EXPECT_EQ(ScratchBytes(options), uint64_t{28 * 7 + 16 * 5} << 20);
  options.parity_chunks = 0;
  EXPECT_EQ(ScratchBytes(options), 0U);
}

}  // namespace
}  // namespace unreft::smp
