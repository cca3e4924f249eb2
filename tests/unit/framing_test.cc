#include "base/framing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"

namespace unreft {
namespace {

using ::testing::HasSubstr;

constexpr size_t kFrameBytesMax = 1 << 16;

std::string Encode(const Frame& frame) {
  const FrameHeader header = EncodeFrameHeader(frame);
  return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + frame.payload;
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Overwrites a header field and mends the CRC, so that the field itself is what is refused.
template <typename T>
std::string WithField(const Frame& frame, size_t offset, T value) {
  std::string stream = Encode(frame);
  std::memcpy(stream.data() + offset, &value, sizeof(value));
  uint32_t crc = Crc32c(Bytes(stream).first(16));
  crc = Crc32cExtend(crc, Bytes(stream).subspan(20));
  std::memcpy(stream.data() + 16, &crc, sizeof(crc));
  return stream;
}

absl::Status Refusal(std::string_view stream, size_t frame_bytes_max = kFrameBytesMax) {
  FrameDecoder decoder(frame_bytes_max);
  auto bytes = Bytes(stream);
  return decoder.Next(bytes).status();
}

TEST(FramingTest, HasTheBytesOfTheFormat) {
  const std::string golden(
      "UNRF"              // magic
      "\x01\x00"          // format
      "\x01\x00"          // min_reader
      "\x05\x03"          // type 0x0305
      "\x00\x00"          // zero
      "\x03\x00\x00\x00"  // payload_bytes
      "\xbe\xed\xa9\xaf"  // crc32c
      "abc",
      23);
  EXPECT_EQ(Encode({.type = 0x0305, .payload = "abc"}), golden);
}

TEST(FramingTest, DecodesWhatItEncodesInPiecesOfAnySize) {
  const std::vector<Frame> frames = {
      {1, "first"}, {2, ""}, {65535, std::string(1000, 'x')}, {0, std::string("\0\xff", 2)}};
  std::string stream;
  for (const Frame& frame : frames) stream += Encode(frame);
  for (size_t piece = 1; piece <= stream.size(); piece = piece * 2 + 1) {
    FrameDecoder decoder(kFrameBytesMax);
    size_t found = 0;
    for (size_t at = 0; at < stream.size(); at += piece) {
      auto bytes = Bytes(stream).subspan(at, std::min(piece, stream.size() - at));
      while (true) {
        auto next = decoder.Next(bytes);
        ASSERT_TRUE(next.ok()) << next.status();
        if (!next->has_value()) break;
        ASSERT_LT(found, frames.size());
        EXPECT_EQ((*next)->type, frames[found].type);
        EXPECT_EQ((*next)->payload, frames[found].payload);
        ++found;
      }
      EXPECT_TRUE(bytes.empty());
    }
    EXPECT_EQ(found, frames.size());
    EXPECT_TRUE(decoder.at_boundary());
  }
}

TEST(FramingTest, KnowsThatAFrameHasBegun) {
  FrameDecoder decoder(kFrameBytesMax);
  EXPECT_TRUE(decoder.at_boundary());
  const std::string stream = Encode({.type = 1, .payload = "abc"});
  auto bytes = Bytes(stream).first(1);
  ASSERT_TRUE(decoder.Next(bytes).ok());
  EXPECT_FALSE(decoder.at_boundary());
  bytes = Bytes(stream).subspan(1, 20);
  ASSERT_TRUE(decoder.Next(bytes).ok());
  EXPECT_FALSE(decoder.at_boundary());
}

TEST(FramingTest, RefusesAnotherMagicByName) {
  const auto status = Refusal("GET / HTTP/1.1\r\nHost: x\r\n");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("found 20544547"));
}

TEST(FramingTest, RefusesAFrameForNewerReadersByBothNumbers) {
  const auto status = Refusal(WithField<uint16_t>({.type = 1}, 6, kFrameFormat + 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs a reader of format 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("reads format 1"));
}

TEST(FramingTest, ReadsANewerFormatThatAdmitsThisReader) {
  FrameDecoder decoder(kFrameBytesMax);
  const std::string stream = WithField<uint16_t>({.type = 1, .payload = "x"}, 4, 7);
  auto bytes = Bytes(stream);
  const auto frame = decoder.Next(bytes);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ((*frame)->payload, "x");
}

TEST(FramingTest, RefusesAPayloadOverTheLimitFromItsHeaderAlone) {
  const std::string header = Encode({.type = 9, .payload = std::string(101, 'x')}).substr(0, 20);
  const auto status = Refusal(header, 100);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("announces 101 payload bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("frame_bytes_max is 100"));
}

TEST(FramingTest, TakesAPayloadOfExactlyTheLimit) {
  EXPECT_TRUE(Refusal(Encode({.type = 9, .payload = std::string(100, 'x')}), 100).ok());
}

TEST(FramingTest, SeesEveryFlippedBit) {
  const std::string stream = Encode({.type = 1, .payload = "payload"});
  for (size_t bit = 0; bit < stream.size() * 8; ++bit) {
    std::string broken = stream;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    FrameDecoder decoder(kFrameBytesMax);
    auto bytes = Bytes(broken);
    const auto next = decoder.Next(bytes);
    // A longer length waits for more bytes; everything else is an error at once.
    if (next.ok()) {
      EXPECT_FALSE(next->has_value()) << bit;
    } else {
      EXPECT_EQ(next.status().code(), absl::StatusCode::kInvalidArgument) << bit;
    }
  }
}

TEST(FramingTest, StaysBrokenOnceBroken) {
  FrameDecoder decoder(kFrameBytesMax);
  const std::string junk(20, 'j');
  auto bytes = Bytes(junk);
  const absl::Status first = decoder.Next(bytes).status();
  ASSERT_FALSE(first.ok());
  const std::string good = Encode({.type = 1});
  bytes = Bytes(good);
  EXPECT_EQ(decoder.Next(bytes).status(), first);
}

// What a fuzzer would do, in little, on every run: no input crashes, and no garbage is a frame.
TEST(FramingTest, TakesNoFrameFromNoise) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string noise = round % 2 == 0 ? "UNRF" + std::string("\1\0\1\0", 4) : "";
    const size_t size = random.Below(64);
    while (noise.size() < size) noise.push_back(static_cast<char>(random.Next()));
    FrameDecoder decoder(kFrameBytesMax);
    auto bytes = Bytes(noise);
    const auto next = decoder.Next(bytes);
    EXPECT_FALSE(next.ok() && next->has_value()) << round;
  }
}

}  // namespace
}  // namespace unreft
