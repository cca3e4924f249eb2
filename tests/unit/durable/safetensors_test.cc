#include "durable/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace unreft::durable {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// By the format's document: eight bytes with the length of the JSON, and the JSON.
std::string Framed(const std::string& json) {
  std::string header(8, '\0');
  for (size_t i = 0; i < 8; ++i) header[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return header + json;
}

TEST(SafetensorsTest, AHeaderIsAsItsReadersAndTorchsTakeIt) {
  const std::vector<SafetensorsEntry> entries = {{"w", Dtype::kFloat32, {30, 0}, {2, 3}},
                                                 {"n", Dtype::kBfloat16, {0}, {5}}};
  const std::string json =
      R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[30,0]},)"
      R"(\"n\":{\"saved_offsets\":[0]}}","DCP_VERSION":"1.0","format":"pt"},)"
      R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("n":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]}})";
  const std::string padding((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(SafetensorsHeader(entries).value(), Framed(json + padding));
}

TEST(SafetensorsTest, AScalarHasNoDimensions) {
  const std::string header =
      SafetensorsHeader(std::vector<SafetensorsEntry>{{"n", Dtype::kInt64, {}, {}}}).value();
  EXPECT_THAT(header, AllOf(HasSubstr(R"(\"n\":{\"saved_offsets\":[]})"),
                            HasSubstr(R"("n":{"dtype":"I64","shape":[],"data_offsets":[0,8]})")));
}

TEST(SafetensorsTest, DataBeginAtAMultipleOfEight) {
  for (size_t letters = 1; letters <= 16; ++letters) {
    const std::vector<SafetensorsEntry> entries = {
        {std::string(letters, 'k'), Dtype::kUint8, {0}, {letters}}};
    EXPECT_EQ(SafetensorsHeader(entries)->size() % 8, 0u) << letters;
  }
}

TEST(SafetensorsTest, KeysAreQuotedAlsoWithinTheMetadata) {
  const std::string header =
      SafetensorsHeader(std::vector<SafetensorsEntry>{{"a\"\\\n\xc3\xa9", Dtype::kBool, {0}, {1}}})
          .value();
  EXPECT_THAT(header, HasSubstr("\"a\\\"\\\\\\u000a\xc3\xa9\":{\"dtype\":\"BOOL\""));
  EXPECT_THAT(header, HasSubstr("{\\\"a\\\\\\\"\\\\\\\\\\\\u000a\xc3\xa9\\\":{\\\"saved"));
}

TEST(SafetensorsTest, EveryTypeHasItsNameButOne) {
  const std::map<Dtype, std::string> names = {
      {Dtype::kBool, "BOOL"},     {Dtype::kUint8, "U8"},           {Dtype::kInt8, "I8"},
      {Dtype::kInt16, "I16"},     {Dtype::kInt32, "I32"},          {Dtype::kInt64, "I64"},
      {Dtype::kFloat16, "F16"},   {Dtype::kBfloat16, "BF16"},      {Dtype::kFloat32, "F32"},
      {Dtype::kFloat64, "F64"},   {Dtype::kFloat8E4m3, "F8_E4M3"}, {Dtype::kFloat8E5m2, "F8_E5M2"},
      {Dtype::kComplex64, "C64"}, {Dtype::kComplex128, ""},        {Dtype::kUint16, "U16"},
      {Dtype::kUint32, "U32"},    {Dtype::kUint64, "U64"}};
  for (int number = 1; DtypeBytes(static_cast<Dtype>(number)) != 0; ++number) {
    const Dtype dtype = static_cast<Dtype>(number);
    ASSERT_TRUE(names.contains(dtype)) << number;
    EXPECT_EQ(SafetensorsDtype(dtype), names.at(dtype)) << number;
  }
}

TEST(SafetensorsTest, WhatTheFormatDoesNotHaveIsRefusedByName) {
  const auto refused = [](const SafetensorsEntry& entry) {
    const absl::Status status = SafetensorsHeader({&entry, 1}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused({"phase", Dtype::kComplex128, {0}, {4}}),
              AllOf(HasSubstr("'phase'"), HasSubstr("complex128")));
  EXPECT_THAT(refused({"__metadata__", Dtype::kFloat32, {0}, {4}}), HasSubstr("__metadata__"));
  EXPECT_THAT(refused({std::string(51'000'000, 'k'), Dtype::kFloat32, {0}, {4}}),
              AllOf(HasSubstr("bytes of JSON"), HasSubstr("100000000")));
}

TEST(SafetensorsTest, AnIndexSaysWhichFileHasWhich) {
  EXPECT_EQ(SafetensorsIndex({{"b", "two.safetensors"}, {"a\"", "one.safetensors"}}, 34),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 34\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\\\"\": \"one.safetensors\",\n"
            "    \"b\": \"two.safetensors\"\n"
            "  }\n"
            "}\n");
}

}  // namespace
}  // namespace unreft::durable
