// What is read of the extras that `unreft.dcp` stores.
#include "durable/dcp_extras.h"

#include <gmock/gmock.h>

#include <string>

namespace unreft::durable {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

using namespace std::string_literals;

std::string Number(uint64_t number) {
  std::string out;
  for (size_t i = 0; i < 8; ++i) out += static_cast<char>(number >> (8 * i));
  return out;
}

std::string Extras(const std::string& header, const std::string& values = "") {
  return "UNRFTDCP" + Number(header.size()) + header + values;
}

// docs/formats/dcp_extras.md; the test of the writer has the same bytes.
const std::string kGolden =
    "UNRFTDCP\x58\0\0\0\0\0\0\0{\"format\":1,\"values\":[[\"lr\",3]],"
    "\"catalogue\":{\"lr\":{\"path\":[\"opt\",0,\"lr\"],\"value_of\":0}}}abc"s;

TEST(DcpExtrasTest, AreReadAsDocumented) {
  ASSERT_TRUE(AreDcpExtras(kGolden));
  const auto extras = ReadDcpExtras(kGolden);
  ASSERT_TRUE(extras.ok()) << extras.status();
  EXPECT_THAT(extras->values, UnorderedElementsAre(Pair("lr", Pair(kGolden.size() - 3, 3))));
  ASSERT_EQ(extras->catalogue.size(), 1u);
  const DcpSavedEntry& entry = extras->catalogue.at("lr");
  EXPECT_EQ(entry.path, (std::vector<PathElement>{"opt", 0, "lr"}));
  EXPECT_EQ(entry.value_of, Rank{0});
  EXPECT_FALSE(entry.empty);
}

TEST(DcpExtrasTest, OfAnotherRankThereIsNoCatalogue) {
  const auto extras = ReadDcpExtras(Extras(R"({"format":1,"values":[["a",0],["b",2]]})", "xy"));
  ASSERT_TRUE(extras.ok()) << extras.status();
  EXPECT_TRUE(extras->catalogue.empty());
  EXPECT_EQ(extras->values.at("a").second, 0u);
  EXPECT_EQ(extras->values.at("b").second, 2u);
}

TEST(DcpExtrasTest, ATensorWithoutElementsHasTypeAndShape) {
  const auto extras = ReadDcpExtras(
      Extras(R"({"format":1,"values":[],"catalogue":{"e":{"empty":["float32",[0,3]]},"w":{}}})"));
  ASSERT_TRUE(extras.ok()) << extras.status();
  const DcpSavedEntry& entry = extras->catalogue.at("e");
  ASSERT_TRUE(entry.empty);
  EXPECT_EQ(entry.empty->first, "float32");
  EXPECT_EQ(entry.empty->second, (std::vector<uint64_t>{0, 3}));
  EXPECT_TRUE(extras->catalogue.at("w").path.empty());
}

void ExpectBroken(const std::string& extras, const std::string& why) {
  const absl::Status status = ReadDcpExtras(extras).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}

TEST(DcpExtrasTest, CutAnywhereTheyAreBroken) {
  for (size_t bytes = 8; bytes < kGolden.size(); ++bytes)
    ExpectBroken(kGolden.substr(0, bytes), "");
  ExpectBroken(kGolden + "0", "needed no bytes after the values, found 1");
}

TEST(DcpExtrasTest, WhatIsWrongIsNamed) {
  const std::string many(1 << 20, '[');
  ExpectBroken("UNRFTDCP" + Number(UINT64_MAX), "needed a header of");
  ExpectBroken(Extras(many), "needed a header in JSON");
  ExpectBroken(Extras("[]"), "needed a header in JSON");
  ExpectBroken(Extras("{\"format\":1,\"\xff\":[]}"), "needed a header in JSON");
  ExpectBroken(Extras(R"({"values":[]})"), "needed format 1, found none");
  ExpectBroken(Extras(R"({"format":2,"values":[]})"), "needed format 1, found 2");
  ExpectBroken(Extras(R"({"format":1})"), "needed a list of values");
  ExpectBroken(Extras(R"({"format":1,"values":[["a"]]})"), "the name and the bytes of each value");
  ExpectBroken(Extras(R"({"format":1,"values":[["a",-1]]})"), "the bytes of each value");
  ExpectBroken(Extras(R"({"format":1,"values":[["a",18446744073709551615]]})", "x"),
               "needed 18446744073709551615 bytes of value 'a', found 1");
  ExpectBroken(Extras(R"({"format":1,"values":[["a",1],["a",1]]})", "xy"), "'a' is there twice");
  const auto of_entry = [](const std::string& entry) {
    return Extras(R"({"format":1,"values":[],"catalogue":{"a":)" + entry + "}}");
  };
  ExpectBroken(Extras(R"({"format":1,"values":[],"catalogue":[]})"), "entries by name");
  ExpectBroken(of_entry("1"), "needed an object of entry 'a'");
  ExpectBroken(of_entry(R"({"path":"a"})"), "needed a list as path of entry 'a'");
  ExpectBroken(of_entry(R"({"path":[1.5]})"), "needed keys and indices");
  ExpectBroken(of_entry(R"({"path":[18446744073709551615]})"), "needed keys and indices");
  ExpectBroken(of_entry(R"({"value_of":-1})"), "needed a rank of entry 'a'");
  ExpectBroken(of_entry(R"({"empty":["float32"]})"), "needed type and shape of entry 'a'");
  ExpectBroken(of_entry(R"({"empty":["float32",[-1]]})"), "needed a shape of entry 'a'");
  ExpectBroken(of_entry(R"({"empty":["float32",[2,3]]})"), "needed no elements of entry 'a'");
}

}  // namespace
}  // namespace unreft::durable
