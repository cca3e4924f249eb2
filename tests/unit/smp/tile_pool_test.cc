// What coding works in: tiles that do not touch, and memory that is used again.

#include "smp/memory/tile_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace unreft::smp {
namespace {

constexpr uint64_t kTileBytes = 1 << 16;

TEST(TilePoolTest, TilesOfASetDoNotTouch) {
  TilePool pool;
  for (const uint64_t bytes : {uint64_t{64}, kTileBytes}) {
    const TileSet set = pool.Take(4, bytes);
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

TEST(TilePoolTest, WhatWasReturnedIsTakenAgainAsItIs) {
  TilePool pool;
  std::byte* memory = nullptr;
  {
    const TileSet set = pool.Take(3, kTileBytes);
    memory = set[0].data();
    set[2][7] = std::byte{42};
  }
  const TileSet other_size = pool.Take(2, kTileBytes);
  EXPECT_NE(other_size[0].data(), memory);
  const TileSet set = pool.Take(3, kTileBytes);
  EXPECT_EQ(set[0].data(), memory);
  EXPECT_EQ(set[2][7], std::byte{42}) << "it was zeroed";
}

TEST(TilePoolTest, NoMoreIsKeptThanItSays) {
  TilePool pool;
  constexpr size_t kCount = TilePool::kSetsKept + 3;
  std::set<std::byte*> first;
  {
    std::vector<TileSet> sets;
    for (size_t i = 0; i < kCount; ++i) {
      sets.push_back(pool.Take(1, kTileBytes));
      EXPECT_TRUE(first.insert(sets.back()[0].data()).second) << "taken twice";
    }
  }
  // Others stand between the kept ones and what the allocator would give again.
  std::vector<TileSet> others;
  for (size_t i = 0; i < kCount; ++i) others.push_back(pool.Take(1, kTileBytes + 64));
  std::vector<TileSet> sets;
  for (size_t i = 0; i < TilePool::kSetsKept; ++i) {
    sets.push_back(pool.Take(1, kTileBytes));
    EXPECT_TRUE(first.contains(sets.back()[0].data())) << i;
  }
}

TEST(TilePoolTest, ASetOutlivesItsPool) {
  TileSet set;
  {
    TilePool pool;
    set = pool.Take(2, kTileBytes);
  }
  std::ranges::fill(set[1], std::byte{1});
  set = TileSet();
}

}  // namespace
}  // namespace unreft::smp
