#include "durable/row_major.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/unit/layout_testing.h"

namespace unreft::durable {
namespace {

using layout::Box;

std::vector<std::byte> Bytes(uint64_t count, Random& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
  return bytes;
}

// An element at a time: where the index is among those of the array as it lies, and where it is
// among the logical ones.
std::vector<std::byte> Expected(const OrderedArray& array, const std::vector<std::byte>& from) {
  const size_t dims = array.extent.size();
  Dims logical_extent = array.extent;
  for (size_t i = 0; i < array.order.size(); ++i) logical_extent[array.order[i]] = array.extent[i];
  std::vector<std::byte> into(from.size());
  uint64_t at = 0;
  ForEachElement(Box{Dims(dims, 0), array.extent}, [&](const Dims& index) {
    Dims logical = index;
    for (size_t i = 0; i < array.order.size(); ++i) logical[array.order[i]] = index[i];
    const uint64_t to = PositionIn(Box{Dims(dims, 0), logical_extent}, logical);
    std::memcpy(into.data() + to * array.element_bytes, from.data() + at * array.element_bytes,
                array.element_bytes);
    ++at;
  });
  return into;
}

TEST(RowMajorTest, EveryElementIsWhereRowMajorOrderHasIt) {
  Random random(7);
  constexpr uint64_t kElements[] = {1, 2, 4, 8, 16};
  for (int round = 0; round < 400; ++round) {
    OrderedArray array;
    array.extent = RandomShape(random, 5, 5);
    array.element_bytes = kElements[random.Below(5)];
    if (!random.OneIn(5)) {
      array.order.resize(array.extent.size());
      std::iota(array.order.begin(), array.order.end(), 0);
      for (size_t i = array.order.size(); i > 1; --i) {
        std::swap(array.order[i - 1], array.order[random.Below(i)]);
      }
    }
    const Box all{Dims(array.extent.size(), 0), array.extent};
    const std::vector<std::byte> from = Bytes(all.elements() * array.element_bytes, random);
    const std::vector<std::byte> expected = Expected(array, from);
    std::vector<std::byte> into(from.size());
    ToRowMajor(array, from, into);
    ASSERT_EQ(into, expected) << round;
    // A stretch at a time it is the same.
    std::ranges::fill(into, std::byte{0});
    const uint64_t at_once = AtOnceBytes(array);
    ASSERT_EQ(from.size() % at_once, 0u) << round;
    for (uint64_t at = 0; at < from.size(); at += at_once) {
      ToRowMajor(array, std::span(from).subspan(at, at_once), std::span(into).subspan(at, at_once));
    }
    ASSERT_EQ(into, expected) << round;
  }
}

TEST(RowMajorTest, WhatHasToBeHeldAtOnceIsBehindTheDimensionsThatAreInPlace) {
  EXPECT_EQ(AtOnceBytes({{64, 3, 3, 16}, {0, 2, 3, 1}, 2}), 3 * 3 * 16 * 2u);
  EXPECT_EQ(AtOnceBytes({{1000, 2000}, {1, 0}, 4}), 1000 * 2000 * 4u);
  EXPECT_EQ(AtOnceBytes({{8, 5, 1000, 2000}, {0, 1, 3, 2}, 4}), 1000 * 2000 * 4u);
  EXPECT_EQ(AtOnceBytes({{1000, 2000}, {}, 4}), 4u);
  EXPECT_EQ(AtOnceBytes({{}, {}, 8}), 8u);
}

}  // namespace
}  // namespace unreft::durable
