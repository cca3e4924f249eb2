// StreamCopy: like memcpy for every size and alignment, and nothing beyond; with a checksum the
// same, and the checksum is that of the bytes.

#include "snapshot/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"

namespace unreft::snapshot {
namespace {

constexpr size_t kMargin = 128;
constexpr size_t kAlignments = 64;

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.Next());
  return made;
}

// Memory to copy between at any alignment, with room to see what is written beyond.
class Copied {
 public:
  explicit Copied(size_t bytes_max)
      : source_(RandomBytes(bytes_max + kAlignments, bytes_max)),
        target_(bytes_max + kAlignments + 2 * kMargin) {}

  const std::byte* source(size_t offset) const { return source_.data() + offset; }
  std::span<const std::byte> source(size_t offset, size_t bytes) const {
    return std::span(source_).subspan(offset, bytes);
  }
  // Ready to be written.
  std::byte* target(size_t offset, size_t bytes) {
    std::fill_n(target_.begin(), 2 * kMargin + offset + bytes, kUntouched);
    return target_.data() + kMargin + offset;
  }
  // Of the target that was asked for last.
  void Expect(size_t source_offset, size_t target_offset, size_t bytes) const {
    const std::byte* const begin = target_.data() + kMargin + target_offset;
    // Nothing may be compared with nothing, but not at a null pointer.
    EXPECT_TRUE(bytes == 0 || std::memcmp(begin, source(source_offset), bytes) == 0)
        << Text(source_offset, target_offset, bytes);
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    EXPECT_TRUE(std::all_of(target_.data(), begin, untouched))
        << Text(source_offset, target_offset, bytes);
    EXPECT_TRUE(std::all_of(begin + bytes, begin + bytes + kMargin, untouched))
        << Text(source_offset, target_offset, bytes);
  }
  static std::string Text(size_t source_offset, size_t target_offset, size_t bytes) {
    return std::to_string(bytes) + " bytes from " + std::to_string(source_offset) + " to " +
           std::to_string(target_offset);
  }

 private:
  static constexpr std::byte kUntouched{0x5a};
  const std::vector<std::byte> source_;
  std::vector<std::byte> target_;
};

// Sizes at which another way of copying begins, or the parts of one change.
std::vector<size_t> SizesAroundTheThresholds() {
  std::vector<size_t> sizes;
  for (size_t at : {kStreamBytesMin, kStreamBytesMin + 512, 2 * kStreamBytesMin,
                    3 * kStreamBytesMin, 3 * kStreamBytesMin + 512}) {
    for (size_t size : {at - 1, at, at + 1, at + 63, at + 64, at + 77, at + 255}) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

TEST(StreamCopyTest, EverySmallSize) {
  Copied copied(600);
  for (size_t bytes = 0; bytes < 600; ++bytes) {
    StreamCopy(copied.target(bytes % 13, bytes), copied.source(bytes % 7), bytes);
    StreamFence();
    copied.Expect(bytes % 7, bytes % 13, bytes);
  }
}

TEST(StreamCopyTest, SizesAroundTheThresholdsAtEveryAlignment) {
  const std::vector<size_t> sizes = SizesAroundTheThresholds();
  Copied copied(*std::ranges::max_element(sizes));
  for (size_t bytes : sizes) {
    for (size_t offset = 0; offset < kAlignments; ++offset) {
      for (const auto& [from, to] :
           {std::pair(offset, size_t{0}), {size_t{0}, offset}, {63 - offset, offset}}) {
        StreamCopy(copied.target(to, bytes), copied.source(from), bytes);
        StreamFence();
        copied.Expect(from, to, bytes);
      }
    }
  }
}

TEST(StreamCopyTest, LargeOnes) {
  Copied copied(4 << 20);
  StreamCopy(copied.target(5, (1 << 20) + 3), copied.source(1), (1 << 20) + 3);
  StreamFence();
  copied.Expect(1, 5, (1 << 20) + 3);
  StreamCopy(copied.target(0, 4 << 20), copied.source(0), 4 << 20);
  StreamFence();
  copied.Expect(0, 0, 4 << 20);
}

TEST(StreamCopyTest, NothingAtAll) { StreamCopy(nullptr, nullptr, 0); }

// How the checksum is made: as the processor of this machine does it best, and as all others do.
struct Way {
  const char* name;
  uint32_t (*copy)(uint32_t, void*, const void*, size_t);
};

class StreamCopyCrc32cTest : public testing::TestWithParam<Way> {
 protected:
  void ExpectCopies(Copied& copied, size_t from, size_t to, size_t bytes, uint32_t crc = 0) {
    const uint32_t found =
        GetParam().copy(crc, copied.target(to, bytes), copied.source(from), bytes);
    StreamFence();
    EXPECT_EQ(found, Crc32cExtend(crc, copied.source(from, bytes)))
        << Copied::Text(from, to, bytes) << " of a checksum " << crc;
    copied.Expect(from, to, bytes);
  }
};

TEST_P(StreamCopyCrc32cTest, EverySmallSize) {
  Copied copied(600);
  for (size_t bytes = 0; bytes < 600; ++bytes) ExpectCopies(copied, bytes % 7, bytes % 13, bytes);
}

TEST_P(StreamCopyCrc32cTest, EverySizeOverTwoTurnsOfTheLoop) {
  Copied copied(kStreamBytesMin + 1200);
  for (size_t bytes = kStreamBytesMin - 8; bytes < kStreamBytesMin + 1200; ++bytes) {
    ExpectCopies(copied, bytes % 7, bytes % 61, bytes);
  }
}

TEST_P(StreamCopyCrc32cTest, SizesAroundTheThresholdsAtEveryAlignment) {
  const std::vector<size_t> sizes = SizesAroundTheThresholds();
  Copied copied(*std::ranges::max_element(sizes));
  for (size_t bytes : sizes) {
    for (size_t offset = 0; offset < kAlignments; ++offset) {
      ExpectCopies(copied, offset, 0, bytes);
      ExpectCopies(copied, 0, offset, bytes);
      ExpectCopies(copied, 63 - offset, offset, bytes);
    }
  }
}

TEST_P(StreamCopyCrc32cTest, AnySizeAlignmentAndBeginning) {
  Random random(20);
  Copied copied(1 << 20);
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = random.Next() % (size_t{1} << (random.Next() % 21));
    ExpectCopies(copied, random.Next() % kAlignments, random.Next() % kAlignments, bytes,
                 static_cast<uint32_t>(random.Next()));
  }
}

TEST_P(StreamCopyCrc32cTest, ContinuesAtEveryCut) {
  constexpr size_t kBytes = 3 * kStreamBytesMin;
  Copied copied(kBytes);
  for (size_t cut = 0; cut <= kBytes; cut += 61) {
    std::byte* const target = copied.target(0, kBytes);
    uint32_t crc = GetParam().copy(0, target, copied.source(0), cut);
    crc = GetParam().copy(crc, target + cut, copied.source(cut), kBytes - cut);
    StreamFence();
    EXPECT_EQ(crc, Crc32c(copied.source(0, kBytes))) << cut;
    copied.Expect(0, 0, kBytes);
  }
}

// A checksum that forgets where the bytes were does not see an exchange of two lines.
TEST_P(StreamCopyCrc32cTest, SeesEveryBitAndWhereItIs) {
  constexpr size_t kBytes = kStreamBytesMin + 700;
  std::vector<std::byte> source(kBytes);
  std::vector<std::byte> target(kBytes);
  std::vector<uint32_t> found = {GetParam().copy(0, target.data(), source.data(), kBytes)};
  for (size_t bit = 0; bit < 8 * kBytes; bit += 5) {
    source[bit / 8] ^= std::byte{1} << bit % 8;
    found.push_back(GetParam().copy(0, target.data(), source.data(), kBytes));
    source[bit / 8] ^= std::byte{1} << bit % 8;
  }
  std::ranges::sort(found);
  EXPECT_EQ(std::ranges::adjacent_find(found), found.end());
}

TEST_P(StreamCopyCrc32cTest, NothingAtAll) {
  EXPECT_EQ(GetParam().copy(0, nullptr, nullptr, 0), 0u);
  EXPECT_EQ(GetParam().copy(7, nullptr, nullptr, 0), 7u);
}

INSTANTIATE_TEST_SUITE_P(Ways, StreamCopyCrc32cTest,
                         testing::Values(Way{"Best", StreamCopyCrc32c},
                                         Way{"InTiles", StreamCopyCrc32cInTiles}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace unreft::snapshot
