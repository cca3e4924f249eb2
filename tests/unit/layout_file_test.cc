// The text of a layout: written as tests/golden has it, read back, and refused by name where it is
// none. UNREFT_UPDATE_GOLDEN=1 writes the file anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "layout/job_layout.h"
#include "smp/node/layout_reader.h"

namespace unreft {
namespace {

using layout::JobLayout;
using layout::RankLayout;
using smp::ReadLayout;
using ::testing::HasSubstr;

std::string GoldenPath(const std::string& name) {
  const char* source = std::getenv("UNREFT_SOURCE_DIR");
  return std::string(source == nullptr ? "." : source) + "/tests/golden/" + name;
}

std::string Golden(const std::string& name) {
  std::ifstream file(GoldenPath(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TensorSpec Shard(std::string name, std::vector<uint64_t> shape, std::vector<uint64_t> offset,
                 std::vector<uint64_t> extent, Dtype dtype = Dtype::kFloat32) {
  return {.name = std::move(name),
          .dtype = dtype,
          .global_shape = std::move(shape),
          .offset = std::move(offset),
          .extent = std::move(extent)};
}

// Two of three ranks, with what a text may have: boxes and whole tensors, a scalar, patterns, a
// name that JSON has to quote, and a tensor of the rank that lacks.
JobLayout Sample() {
  JobLayout sample{.job = "golden", .world = 3};
  for (uint64_t rank = 0; rank < 2; ++rank) {
    sample.ranks.push_back({.rank = Rank{rank},
                            .node = 2 * rank,
                            .any_world = rank == 0,
                            .shards = {Shard("model/w", {20, 7}, {8 * rank, 0}, {8, 7}),
                                       Shard("optim/w/*", {20, 7}, {8 * rank, 0}, {8, 7}),
                                       Shard("rank*/buffer/mean", {7}, {0}, {7}),
                                       Shard("step", {}, {}, {}, Dtype::kInt64)}});
  }
  sample.ranks[0].shards.push_back(Shard("a \"b\\\" \x01 \xc3\xa9", {1}, {0}, {1}, Dtype::kBool));
  sample.others = {Shard("model/last", {5}, {0}, {5}, Dtype::kBfloat16)};
  return sample;
}

std::string Text() { return ToJson(Sample()); }

std::string Replaced(const std::string& what, const std::string& by) {
  std::string text = Text();
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

void ExpectRefused(const std::string& text, const std::string& why) {
  const absl::StatusOr<JobLayout> read = ReadLayout(text);
  EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << why << ": " << read.status();
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(why));
}

TEST(LayoutFileTest, IsWrittenAsItAlwaysWas) {
  if (std::getenv("UNREFT_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(GoldenPath("layout_file.bin"), std::ios::binary) << Text() << '\n';
  }
  EXPECT_EQ(Golden("layout_file.bin"), Text() + '\n');
}

TEST(LayoutFileTest, IsReadBack) {
  const absl::StatusOr<JobLayout> read = ReadLayout(Golden("layout_file.bin"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Sample());
}

TEST(LayoutFileTest, WhatIsRestoredFromOtherShapesIsReadBack) {
  JobLayout layout = Sample();
  for (RankLayout& rank : layout.ranks) rank.shards.front().allow_shape_mismatch = true;
  const absl::StatusOr<JobLayout> read = ReadLayout(ToJson(layout));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, layout);
  ExpectRefused(Replaced(R"("ranks":)", R"("allow_shape_mismatch":[99],"ranks":)"),
                "allow_shape_mismatch");
}

TEST(LayoutFileTest, WhatALaterReleaseMayWriteIsRead) {
  const absl::StatusOr<JobLayout> read = ReadLayout(Golden("layout_file_format2.bin"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Sample());
}

TEST(LayoutFileTest, WhatIsForLaterReadersIsRefused) {
  const auto read = ReadLayout(Replaced(R"("min_reader":1)", R"("min_reader":2)"));
  EXPECT_TRUE(absl::IsFailedPrecondition(read.status())) << read.status();
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("this release reads 1"));
}

TEST(LayoutFileTest, WhatIsCutShortAnywhereIsRefused) {
  const std::string text = Text();
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(ReadLayout(text.substr(0, bytes)).ok()) << bytes;
  }
}

TEST(LayoutFileTest, AnyByteMayBeAnother) {
  // It is read, or refused; nothing is asked of what it means.
  const std::string text = Text();
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'\0', '0', '9', '-', '"', '[', ']', '{', '\xff'}) {
      std::string changed = text;
      changed[at] = byte;
      const auto read = ReadLayout(changed);
      if (read.ok()) {
        EXPECT_TRUE(layout::CheckLayout(*read).ok()) << changed;
      }
    }
  }
}

TEST(LayoutFileTest, DepthIsBounded) {
  ExpectRefused(std::string(1 << 20, '['), "no JSON object");
  ExpectRefused(Replaced(R"("world":3)",
                         R"("x":)" + std::string(20, '[') + std::string(20, ']') + R"(,"world":3)"),
                "no JSON object of at most 8 levels");
}

TEST(LayoutFileTest, WhatIsWrongIsNamedWithItsPlace) {
  const std::pair<std::string, std::pair<std::string, std::string>> cases[] = {
      {"it is no layout", {"unreft_layout", "other_layout"}},
      {"world: needed a whole number of 0 or more, found -3", {R"("world":3)", R"("world":-3)"}},
      {"world: needed 1 to 1048576 ranks, found 0", {R"("world":3)", R"("world":0)"}},
      {"world: needed 1 to 1048576 ranks, found 18446744073709551615",
       {R"("world":3)", R"("world":18446744073709551615)"}},
      {"job: needed a string, found 7", {R"("golden")", "7"}},
      {"tensors lacks", {R"("tensors")", R"("sensors")"}},
      {"tensors[0]: needed a dtype, like \"float32\", found \"float31\"", {"float32", "float31"}},
      {"tensors[0]: needed [name, dtype, global shape]", {R"(,[20,7]])", "]"}},
      {"ranks[0].rank: needed a whole number", {R"("rank":0)", R"("rank":0.5)"}},
      {"ranks[1].node lacks", {R"("node":2)", R"("mode":2)"}},
      {"ranks[0].any_world: needed true or false, found 1",
       {R"("any_world":true)", R"("any_world":1)"}},
      {"ranks[0].shards[0]: needed [tensor] or [tensor, offset, extent]", {"[0,[0,0],", "[0,"}},
      {"ranks[0].shards[0]: needed the number of one of 6 tensors, found 99",
       {"[0,[0,0],", "[99,[0,0],"}},
      {"rank 0 is there twice", {R"("rank":1)", R"("rank":0)"}},
      {"rank 3: needed one below the world's 3 ranks", {R"("rank":1)", R"("rank":3)"}},
      {"rank 0: tensor 'model/w'", {"[0,[0,0],[8,7]]", "[0,[0,0],[21,7]]"}},
      {"rank 0: tensor 'model/w'", {"[0,[0,0],[8,7]]", "[0,[0],[8]]"}},
  };
  for (const auto& [why, change] : cases) {
    ExpectRefused(Replaced(change.first, change.second), why);
  }
}

TEST(LayoutFileTest, TensorsOfOneNameAreOfOneKind) {
  JobLayout layout = Sample();
  layout.ranks[1].shards[0] = Shard("model/w", {8}, {0}, {8});
  EXPECT_THAT(std::string(CheckLayout(layout).message()),
              HasSubstr("'model/w': float32 [20, 7] on rank 0, float32 [8] on rank 1"));
}

TEST(LayoutFileTest, WhatIsEachRanksOwnMayBeOfSeveralKinds) {
  JobLayout layout = Sample();
  layout.ranks[1].shards[2] = Shard("rank*/buffer/mean", {8}, {0}, {8});
  const absl::StatusOr<JobLayout> read = ReadLayout(ToJson(layout));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, layout);
}

TEST(LayoutFileTest, TheFirstRanksThatLackAreNamed) {
  EXPECT_EQ(CheckAllThere(Sample()).message(), "of the world's 3 ranks 1 lack: 2");
  JobLayout layout = Sample();
  layout.world = 100;
  EXPECT_EQ(CheckAllThere(layout).message(),
            "of the world's 100 ranks 98 lack: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...");
}

}  // namespace
}  // namespace unreft
