// CRCs that are put together from those of parts, against Crc32c of the whole.

#include "base/crc32c_combine.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/crc32c.h"

namespace unreft::crc32c {
namespace {

std::vector<std::byte> Random(size_t size, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

TEST(Crc32cCombineTest, EveryCutOfAFewBytes) {
  const auto bytes = Random(300, 1);
  const std::span<const std::byte> all(bytes);
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    EXPECT_EQ(
        Append(Crc32c(all.first(cut)), Crc32c(all.subspan(cut)), PowerOfBytes(all.size() - cut)),
        Crc32c(all))
        << cut;
  }
}

TEST(Crc32cCombineTest, RandomCutsOfRandomLengths) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto bytes = Random(1 + random() % 200'000, static_cast<uint32_t>(round + 1));
    const std::span<const std::byte> all(bytes);
    uint32_t crc = 0;
    for (size_t at = 0; at < all.size();) {
      const size_t run = std::min<size_t>(all.size() - at, 1 + random() % 40'000);
      crc = Append(crc, Crc32c(all.subspan(at, run)), PowerOfBytes(run));
      at += run;
    }
    ASSERT_EQ(crc, Crc32c(all)) << "round " << round << ", " << all.size() << " bytes";
  }
}

TEST(Crc32cCombineTest, ZerosNeedNotBeRead) {
  const std::vector<std::byte> zeros(1 << 21);
  for (size_t bytes : {0, 1, 7, 64, 4095, 1 << 20, 1 << 21}) {
    EXPECT_EQ(OfZeros(bytes), Crc32c(std::span(zeros).first(bytes))) << bytes;
  }
}

// 8 * 2^61 bits: no length of 64 bits is too long, and the powers add up.
TEST(Crc32cCombineTest, PowersOfLongLengths) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 1000; ++round) {
    const uint64_t a = random() >> 4;
    const uint64_t b = random() >> 4;
    ASSERT_EQ(Multiply(PowerOfBytes(a), PowerOfBytes(b)), PowerOfBytes(a + b)) << a << " " << b;
  }
}

TEST(Crc32cCombineTest, InversesUndo) {
  for (uint64_t bytes = 0; bytes < 1000; ++bytes) {
    ASSERT_EQ(Multiply(InverseOfBytes(bytes), PowerOfBytes(bytes)), kOne) << bytes;
  }
}

}  // namespace
}  // namespace unreft::crc32c
