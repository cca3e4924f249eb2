#include "tools/cli/line_prefixer.h"

#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

TEST(LinePrefixer, JoinsWhatComesInPieces) {
  LinePrefixer lines("[1] ");
  EXPECT_EQ(lines.Take("one\ntw"), "[1] one\n");
  EXPECT_EQ(lines.Take("o"), "");
  EXPECT_EQ(lines.Take("\n\nthree\n"), "[1] two\n[1] \n[1] three\n");
  EXPECT_EQ(lines.Rest(), "");
}

TEST(LinePrefixer, EndsTheLastLine) {
  LinePrefixer lines("[1] ");
  EXPECT_EQ(lines.Take("no end"), "");
  EXPECT_EQ(lines.Rest(), "[1] no end\n");
  EXPECT_EQ(lines.Rest(), "");
}

TEST(LinePrefixer, CutsALineWithoutEnd) {
  LinePrefixer lines("");
  const std::string chunk(LinePrefixer::kLineBytesMax / 2, 'x');
  EXPECT_EQ(lines.Take(chunk), "");
  EXPECT_EQ(lines.Take(chunk), chunk + chunk + "\n");
}

}  // namespace
}  // namespace unreft::cli
