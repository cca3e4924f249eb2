#include "base/text.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"
#include "base/session_frames.h"

namespace unreft {
namespace {

TEST(CleanTextTest, CleanTextStaysAsItIs) {
  for (const char* text :
       {"", "rank 3: no slot", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d", "\\n"}) {
    EXPECT_EQ(CleanText(text), text);
  }
}

TEST(CleanTextTest, OneLineOfUtf8) {
  EXPECT_EQ(CleanText("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(CleanText("2026 error unreft[1] x\n2026 info all is well"),
            "2026 error unreft[1] x\\n2026 info all is well");
  EXPECT_EQ(CleanText(std::string("nul\0esc\x1b[31m\x7f", 12)), "nul\\x00esc\\x1b[31m");
  EXPECT_EQ(CleanText("del\x7f"), "del\\x7f");
  EXPECT_EQ(CleanText("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(CleanText("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(CleanText("\xc2\x85|\xe2\x80\xa8"), "\\xc2\\x85|\\xe2\\x80\\xa8")
      << "lines end so, too";
}

TEST(CleanTextTest, IsCutBetweenCharacters) {
  EXPECT_EQ(CleanText("abcdef", 6), "abcdef");
  EXPECT_EQ(CleanText("abcdefg", 6), "abc...");
  EXPECT_EQ(CleanText("\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 8), "\xe2\x82\xac...");
  EXPECT_EQ(CleanText("\n\n\n\n", 7), "\\n\\n...");
  EXPECT_EQ(CleanText("abcd", 3), "...");
}

TEST(CleanTextTest, WhateverComesIn) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(40); n > 0; --n) {
      text += static_cast<char>(random.OneIn(3) ? 0x80 + random.Below(128) : random.Below(256));
    }
    const size_t most = 3 + random.Below(50);
    const std::string clean = CleanText(text, most);
    EXPECT_LE(clean.size(), most);
    EXPECT_EQ(CleanText(clean), clean);
    EXPECT_EQ(CleanText(clean, most), clean);
  }
}

// A trainer's words are clean before anybody reads them.
TEST(CleanTextTest, WordsInFramesAreCleanWhereTheyAreDecoded) {
  const std::string dirty = "\xff\n" + std::string(5000, 'x');
  const std::string clean = CleanText(dirty, kTextBytesMax);
  const auto through = [](auto message) {
    auto decoded = DecodeWire<decltype(message)>(EncodeWire(message), "test");
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    return *decoded;
  };
  EXPECT_EQ(through(Skipped{.reason = dirty}).reason, clean);
  EXPECT_EQ(through(GaveUp{.reason = dirty}).reason, clean);
  EXPECT_EQ(through(VersionState{.reason = dirty}).reason, clean);
  EXPECT_EQ(through(Obstacle{.what = dirty}).what, clean);
  EXPECT_EQ(through(Hello{.client_version = dirty}).client_version, clean);
  EXPECT_EQ(through(Welcome{.daemon_version = dirty}).daemon_version, clean);
  EXPECT_EQ(through(WireStatus(absl::InternalError(dirty))).message, clean);
}

}  // namespace
}  // namespace unreft
