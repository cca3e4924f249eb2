// The arithmetic of the checksum's kernel, lane by lane on the CPU, against Crc32c.

#include "snapshot/cuda_checksum_lanes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/crc32c.h"

namespace unreft::snapshot::checksum {
namespace {

uint32_t ByAWarp(std::span<const std::byte> bytes) {
  const Piece piece{reinterpret_cast<uint64_t>(bytes.data()), bytes.size()};
  uint32_t remainder = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    remainder ^= LaneRemainder(piece, lane, kRowTable[0].data(), kUndoTable.data());
  }
  return ToCrc32c(remainder, bytes.size());
}

class ChecksumLanesTest : public testing::Test {
 protected:
  explicit ChecksumLanesTest() {
    std::minstd_rand random(5);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random() >> 8);
  }
  // At every distance from the beginning of a row.
  std::span<const std::byte> At(size_t offset, size_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
    const size_t to_row = (kRowBytes - begin % kRowBytes) % kRowBytes;
    return std::span(bytes_).subspan(to_row + offset, bytes);
  }
  std::vector<std::byte> bytes_ = std::vector<std::byte>(80'000);
};

TEST_F(ChecksumLanesTest, EveryAlignmentAndEverySmallSize) {
  for (size_t offset = 0; offset < kRowBytes; ++offset) {
    for (size_t bytes = 0; bytes <= 3 * kRowBytes; ++bytes) {
      ASSERT_EQ(ByAWarp(At(offset, bytes)), Crc32c(At(offset, bytes))) << offset << " " << bytes;
    }
  }
}

TEST_F(ChecksumLanesTest, LargerOnesWithAllRowsAhead) {
  std::minstd_rand random(9);
  for (int round = 0; round < 500; ++round) {
    const auto bytes = At(random() % kRowBytes, random() % 70'000);
    ASSERT_EQ(ByAWarp(bytes), Crc32c(bytes)) << bytes.size();
  }
  ASSERT_EQ(ByAWarp(At(0, 32 << 10)), Crc32c(At(0, 32 << 10)));
}

TEST_F(ChecksumLanesTest, WhatLiesBesideThePieceIsNotPartOfIt) {
  const auto piece = At(130, 1000);
  const uint32_t before = ByAWarp(piece);
  auto* begin = const_cast<std::byte*>(piece.data());
  std::memset(begin - 130, 0x5a, 130);
  std::memset(begin + 1000, 0x5a, 130);
  EXPECT_EQ(ByAWarp(piece), before);
  begin[999] ^= std::byte{1};
  EXPECT_NE(ByAWarp(piece), before);
}

}  // namespace
}  // namespace unreft::snapshot::checksum
