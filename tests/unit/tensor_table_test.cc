#include "layout/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/layout_testing.h"

namespace unreft::layout {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The message of the InvalidArgument that refuses these.
std::string Refusal(std::vector<TensorSpec> specs) {
  const auto table = TensorTable::Create(std::move(specs));
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument) << table.status();
  return std::string(table.status().message());
}

uint64_t DigestOf(std::vector<TensorSpec> specs) {
  const auto table = TensorTable::Create(std::move(specs));
  EXPECT_TRUE(table.ok()) << table.status();
  return table->digest();
}

TEST(TensorTableTest, TakesScalarsShardsAndNone) {
  EXPECT_TRUE(TensorTable::Create({}).ok());
  const auto table = TensorTable::Create(
      {Whole("step", {}), Spec("w", {8, 4}, {0, 0}, {4, 4}), Spec("w", {8, 4}, {4, 2}, {4, 2})});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->size(), 3u);
}

TEST(TensorTableTest, RefusesBadNames) {
  EXPECT_THAT(Refusal({Whole("", {1})}), AllOf(HasSubstr("1 to 1024"), HasSubstr("found 0")));
  EXPECT_THAT(Refusal({Whole(std::string(1025, 'n'), {1})}),
              AllOf(HasSubstr("nnn"), HasSubstr("1 to 1024"), HasSubstr("found 1025")));
  EXPECT_TRUE(TensorTable::Create({Whole(std::string(1024, 'n'), {1})}).ok());
}

TEST(TensorTableTest, RefusesNamesThatAreNotUtf8) {
  for (const char* good : {"layer.0/w", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8c\x8d"}) {
    EXPECT_TRUE(TensorTable::Create({Whole(good, {1})}).ok()) << good;
  }
  for (const char* bad :
       {"a\x80", "a\xc0\x80", "a\xe0\x80\x80", "a\xed\xa0\x80", "a\xf4\x90\x80\x80", "a\xff",
        "a\xc3", "a\xe2\x82", "a\xf0\x9f\x8c", "a\xc3(", "a\xf8\x80\x80\x80"}) {
    EXPECT_THAT(Refusal({Whole(bad, {1})}),
                AllOf(HasSubstr("'a...'"), HasSubstr("UTF-8"), HasSubstr("0x"), HasSubstr("at 1")));
  }
}

TEST(TensorTableTest, RefusesUnknownDtypes) {
  EXPECT_THAT(Refusal({Whole("w", {1}, 0, 1, static_cast<Dtype>(99))}),
              AllOf(HasSubstr("'w'"), HasSubstr("dtype 99")));
}

TEST(TensorTableTest, RefusesRaggedAndTooManyDimensions) {
  EXPECT_THAT(Refusal({Spec("w", {2, 2}, {0}, {2, 2})}),
              AllOf(HasSubstr("'w'"), HasSubstr("2, 1, 2")));
  EXPECT_THAT(Refusal({Whole("w", Dims(17, 1))}),
              AllOf(HasSubstr("'w'"), HasSubstr("16"), HasSubstr("17")));
  EXPECT_TRUE(TensorTable::Create({Whole("w", Dims(16, 1))}).ok());
}

TEST(TensorTableTest, RefusesEmptyShardsAndBoxesOutsideTheShape) {
  EXPECT_THAT(Refusal({Spec("w", {4}, {0}, {0})}), AllOf(HasSubstr("'w'"), HasSubstr("found 0")));
  EXPECT_THAT(Refusal({Spec("w", {4}, {2}, {3})}),
              AllOf(HasSubstr("'w'"), HasSubstr("offset 2 and extent 3"), HasSubstr("shape 4")));
  EXPECT_THAT(Refusal({Spec("w", {4}, {UINT64_MAX}, {2})}), HasSubstr("18446744073709551615"));
  EXPECT_THAT(Refusal({Spec("w", {UINT64_MAX}, {5}, {UINT64_MAX - 1})}), HasSubstr("outside"));
}

TEST(TensorTableTest, RefusesShardsTooLargeToCountWithoutOverflow) {
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_THAT(Refusal({Whole("w", {big, big})}),
              AllOf(HasSubstr("'w'"), HasSubstr("4294967296, 4294967296"),
                    HasSubstr("4611686018427387904")));
  // 2^60 elements of 4 bytes are 2^62; one less fits.
  EXPECT_THAT(Refusal({Whole("w", {uint64_t{1} << 60})}), HasSubstr("less than"));
  EXPECT_TRUE(TensorTable::Create({Whole("w", {(uint64_t{1} << 60) - 100})}).ok());
  EXPECT_THAT(
      Refusal({Whole("v", {uint64_t{1} << 59}), Whole("w", {uint64_t{1} << 59})}),
      AllOf(HasSubstr("'w'"), HasSubstr("4611686018427387904"), HasSubstr("all shards together")));
}

TEST(TensorTableTest, RefusesReplicaIndicesNotBelowTheCount) {
  EXPECT_THAT(Refusal({Whole("w", {1}, 2, 2)}),
              AllOf(HasSubstr("'w'"), HasSubstr("index 2"), HasSubstr("found 2")));
  EXPECT_THAT(Refusal({Whole("w", {1}, 0, 0)}), HasSubstr("found 0"));
}

TEST(TensorTableTest, RefusesShardsOfOneNameThatDoNotFit) {
  const TensorSpec first = Spec("w", {8}, {0}, {4});
  EXPECT_THAT(Refusal({first, Spec("w", {8}, {3}, {5})}),
              AllOf(HasSubstr("'w'"), HasSubstr("[0:4)"), HasSubstr("[3:8)")));
  EXPECT_THAT(Refusal({first, first}), HasSubstr("overlap"));
  EXPECT_THAT(Refusal({first, Spec("w", {9}, {4}, {4})}),
              AllOf(HasSubstr("[8]"), HasSubstr("[9]")));
  EXPECT_THAT(Refusal({first, Spec("w", {8}, {4}, {4}, 0, 1, Dtype::kInt8)}),
              AllOf(HasSubstr("float32"), HasSubstr("int8")));
  EXPECT_THAT(Refusal({first, Spec("w", {8}, {4}, {4}, 0, 2)}),
              HasSubstr("replica count, 1 and 2"));
  EXPECT_THAT(Refusal({Whole("s", {}), Whole("s", {})}), HasSubstr("overlap"));
}

TEST(TensorTableTest, DigestIsOfAllButWhenATensorIsCopied) {
  const std::vector<TensorSpec> specs = {Whole("v", {4}, 0, 2), Spec("w", {8, 4}, {0, 0}, {4, 4})};
  const uint64_t digest = DigestOf(specs);
  // Persistent: seals and manifests hold it.
  EXPECT_EQ(digest, 0x6bd9771704f86806u);
  auto changed = specs;
  changed[0].is_volatile = true;
  EXPECT_EQ(DigestOf(changed), digest);
  changed[0].replica_index = 1;
  EXPECT_NE(DigestOf(changed), digest);
  changed = specs;
  changed[0].replica_count = 3;
  EXPECT_NE(DigestOf(changed), digest);
  changed = specs;
  changed[0].name = "u";
  EXPECT_NE(DigestOf(changed), digest);
  changed = specs;
  changed[0].dtype = Dtype::kInt32;
  EXPECT_NE(DigestOf(changed), digest);
  changed = specs;
  changed[1].global_shape = {9, 4};
  EXPECT_NE(DigestOf(changed), digest);
  changed = specs;
  changed[1].offset = {4, 0};
  EXPECT_NE(DigestOf(changed), digest);
  changed = specs;
  std::swap(changed[0], changed[1]);
  EXPECT_NE(DigestOf(changed), digest);
}

TEST(TensorTableTest, TakesManyShardsOfOneName) {
  std::vector<TensorSpec> specs;
  for (uint64_t i = 0; i < 50000; ++i) specs.push_back(Spec("w", {50000}, {i}, {1}));
  EXPECT_TRUE(TensorTable::Create(specs).ok());
}

}  // namespace
}  // namespace unreft::layout
