#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

namespace unreft {
namespace {

std::vector<std::byte> Filled(size_t size, uint8_t value) {
  return std::vector<std::byte>(size, std::byte{value});
}

std::vector<std::byte> Counting(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(Crc32cTest, KnowsTheVectorsOfRfc3720) {
  EXPECT_EQ(Crc32c(Filled(32, 0x00)), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(Filled(32, 0xff)), 0x62a8ab43U);
  auto bytes = Counting(32);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794eU);
  std::ranges::reverse(bytes);
  EXPECT_EQ(Crc32c(bytes), 0x113fdb5cU);
}

TEST(Crc32cTest, KnowsTheIscsiReadCommandOfRfc3720) {
  const uint8_t command[48] = {0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                               0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00,
                               0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00,
                               0x00, 0x18, 0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                               0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(command))), 0xd9963a56U);
}

TEST(Crc32cTest, KnowsTheCheckValueOfTheCatalogue) {
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xe3069283U);
}

TEST(Crc32cTest, NothingHasCrcZero) { EXPECT_EQ(Crc32c({}), 0U); }

TEST(Crc32cTest, ExtendsAtEveryCut) {
  const auto bytes = Counting(300);
  const std::span<const std::byte> all(bytes);
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    EXPECT_EQ(Crc32cExtend(Crc32c(all.first(cut)), all.subspan(cut)), Crc32c(all)) << cut;
  }
}

}  // namespace
}  // namespace unreft
