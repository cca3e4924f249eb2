#include "durable/plain_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace unreft::durable {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = PlainSequence::Kind;

using namespace std::string_literals;

// --- the encoding, as docs/formats/extras.md has it ---

std::string Number(uint64_t number, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i));
  return out;
}

std::string Tagged(char tag, uint64_t count, const std::string& rest) {
  return tag + Number(count, 4) + rest;
}

std::string Str(const std::string& text) { return Tagged('s', text.size(), text); }
std::string Bytes(const std::string& bytes) { return Tagged('b', bytes.size(), bytes); }
std::string Int(int64_t value) { return "i" + Number(static_cast<uint64_t>(value), 8); }
std::string Float(double value) { return "f" + Number(std::bit_cast<uint64_t>(value), 8); }

std::string Many(char tag, const std::vector<std::string>& values) {
  std::string all;
  for (const std::string& value : values) all += value;
  return Tagged(tag, tag == 'd' ? values.size() / 2 : values.size(), all);
}

const std::string kNoItems = Many('l', {});
const std::string kNoPairs = Many('d', {});

// A value of another kind: its name and arguments.
std::string Made(const std::vector<std::string>& arguments, const std::string& items = kNoItems,
                 const std::string& pairs = kNoPairs) {
  return "m" + Many('t', arguments) + items + pairs;
}

std::string TensorOf(const std::string& dtype, const std::vector<std::string>& sizes,
                     const std::string& bytes) {
  return Made({Str("tensor"), Str(dtype), Many('t', sizes), Bytes(bytes)});
}

// Something of everything.
std::string Rich() {
  return Many('d',
              {Str("step"),    Int(-7),
               Str("lr"),      Float(0.5),
               Str("none"),    "N",
               Str("flags"),   Many('t', {"T", "F"}),
               Str("big"),     Tagged('I', 9, "\0\0\0\0\0\0\0\0\1"s),
               Str("raw"),     Bytes("\0\xff"s),
               Str("array"),   Tagged('B', 1, "x"),
               Str("set"),     Many('e', {Int(1), Int(2)}),
               Str("frozen"),  Many('z', {Str("a")}),
               Str("list"),    Many('l', {Many('d', {Int(3), Many('l', {})})}),
               Str("tensor"),  TensorOf("float32", {Int(2)}, "12345678"),
               Str("ordered"), Made({Str("OrderedDict")}, kNoItems, Many('d', {Str("k"), "N"}))});
}

PlainValue Read(const std::string& bytes) {
  auto value = ReadPlain(bytes);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *std::move(value) : PlainValue{};
}

void ExpectLost(const std::string& bytes, const std::string& message = "") {
  const absl::Status status = ReadPlain(bytes).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status << " " << message;
  EXPECT_THAT(std::string(status.message()), StartsWith("extras: at byte "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

template <typename T>
void ExpectReads(const std::string& bytes, T expected) {
  EXPECT_EQ(Read(bytes), PlainValue{std::move(expected)});
}

// --- values ---

TEST(PlainReaderTest, ReadsTheExampleOfTheFormat) {
  ExpectReads("\x64\x01\0\0\0\x73\x02\0\0\0\x6c\x72\x66\0\0\0\0\0\0\xe0\x3f"s,
              PlainDict{{{PlainValue{"lr"s}, PlainValue{0.5}}}});
}

TEST(PlainReaderTest, ReadsWhatHasNoParts) {
  ExpectReads("N", PlainNone{});
  ExpectReads("T", true);
  ExpectReads("F", false);
  for (const int64_t value : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{258}, INT64_MAX}) {
    ExpectReads(Int(value), value);
  }
  ExpectReads(Tagged('I', 9, "\1\2\3\4\5\6\7\x08\xff"s), PlainBigInt{"\1\2\3\4\5\6\7\x08\xff"s});
  for (const double value : {0.0, 1e-308, -2.5}) ExpectReads(Float(value), value);
  ExpectReads(Str(""), ""s);
  ExpectReads(Str("gr\xc3\xb6\xc3\x9f"), "gr\xc3\xb6\xc3\x9f"s);
  ExpectReads(Str("a\0b"s), "a\0b"s);
  ExpectReads(Bytes("\0\xff"s), PlainBytes{"\0\xff"s, false});
  ExpectReads(Tagged('B', 2, "\0\xff"s), PlainBytes{"\0\xff"s, true});
}

TEST(PlainReaderTest, AFloatKeepsItsBits) {
  for (const uint64_t bits : {uint64_t{0x8000000000000000}, uint64_t{0x7ff0000000000000},
                              uint64_t{0x7ff8000000000123}, uint64_t{0xfff4000000000001}}) {
    const PlainValue value = Read("f" + Number(bits, 8));
    ASSERT_NE(value.As<double>(), nullptr);
    EXPECT_EQ(std::bit_cast<uint64_t>(*value.As<double>()), bits);
  }
}

TEST(PlainReaderTest, ReadsContainersInTheirOrder) {
  const std::pair<char, Kind> kinds[] = {
      {'l', Kind::kList}, {'t', Kind::kTuple}, {'e', Kind::kSet}, {'z', Kind::kFrozenSet}};
  for (const auto& [tag, kind] : kinds) {
    ExpectReads(Many(tag, {}), PlainSequence{kind, {}});
    ExpectReads(Many(tag, {Str("b"), Int(1), "N"}),
                PlainSequence{kind, {PlainValue{"b"s}, PlainValue{int64_t{1}}, PlainValue{}}});
  }
  ExpectReads(Many('d', {Str("b"), "T", Int(1), Many('l', {"N", "N"})}),
              PlainDict{{{PlainValue{"b"s}, PlainValue{true}},
                         {PlainValue{int64_t{1}},
                          PlainValue{PlainSequence{Kind::kList, {PlainValue{}, PlainValue{}}}}}}});
}

TEST(PlainReaderTest, ADictFindsTheValueOfAStr) {
  const PlainValue value =
      Read(Many('d', {Int(1), "N", Bytes("lr"), "N", Str("lr"), "T", Str("l"), "F"}));
  const PlainDict* const dict = value.As<PlainDict>();
  ASSERT_NE(dict, nullptr);
  ASSERT_NE(dict->Find("lr"), nullptr);
  EXPECT_EQ(*dict->Find("lr"), PlainValue{true});
  EXPECT_EQ(dict->Find("1"), nullptr);
  EXPECT_EQ(dict->Find(""), nullptr);
}

TEST(PlainReaderTest, ReadsOtherKindsAsTheyAreWritten) {
  ExpectReads(Made({Str("device"), Str("cuda:0")}),
              PlainOther{"device", {PlainValue{"cuda:0"s}}, {}, {}});
  ExpectReads(Made({Str("deque"), "N"}, Many('l', {Int(1)})),
              PlainOther{"deque", {PlainValue{}}, {PlainValue{int64_t{1}}}, {}});
  ExpectReads(Made({Str("OrderedDict")}, kNoItems, Many('d', {Str("a"), "T"})),
              PlainOther{"OrderedDict", {}, {}, {{{PlainValue{"a"s}, PlainValue{true}}}}});
  ExpectReads(Made({Str("of a later release"), "N"}),
              PlainOther{"of a later release", {PlainValue{}}, {}, {}});
}

TEST(PlainReaderTest, ReadsTensorsOfEachDtype) {
  int known = 0;
  for (int number = 1; DtypeBytes(Dtype(number)) != 0; ++number, ++known) {
    const auto dtype = Dtype(number);
    const std::string bytes(6 * DtypeBytes(dtype), '\1');
    ExpectReads(TensorOf(DtypeName(dtype), {Int(2), Int(3)}, bytes),
                PlainTensor{dtype, {2, 3}, bytes});
  }
  EXPECT_EQ(known, 17);
  ExpectReads(TensorOf("float64", {}, "12345678"), PlainTensor{Dtype::kFloat64, {}, "12345678"});
  ExpectReads(TensorOf("float64", {Int(3), Int(0)}, ""), PlainTensor{Dtype::kFloat64, {3, 0}, ""});
}

// A writer has more dtypes than there are numbers of: no reason to lose all the rest.
TEST(PlainReaderTest, ATensorOfAnotherDtypeIsOfAnotherKind) {
  ExpectReads(TensorOf("complex32", {Int(1)}, "1234"),
              PlainOther{"tensor",
                         {PlainValue{"complex32"s},
                          PlainValue{PlainSequence{Kind::kTuple, {PlainValue{int64_t{1}}}}},
                          PlainValue{PlainBytes{"1234", false}}},
                         {},
                         {}});
}

// --- what no writer has written ---

TEST(PlainReaderTest, EachTruncationIsDataLoss) {
  const std::string whole = Rich();
  ASSERT_TRUE(ReadPlain(whole).ok()) << ReadPlain(whole).status();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    ASSERT_TRUE(absl::IsDataLoss(ReadPlain(whole.substr(0, bytes)).status())) << bytes;
  }
  ExpectLost("", "at byte 0: needed 1 bytes, found 0");
}

TEST(PlainReaderTest, BytesAfterTheValueAreDataLoss) {
  ExpectLost("NN", "at byte 1: 1 bytes after the value, needed none");
  ExpectLost(Rich() + "\0"s, "1 bytes after the value");
  ExpectLost(kNoItems + kNoItems, "5 bytes after the value");
}

TEST(PlainReaderTest, CountsAboveWhatIsLeftAreDataLoss) {
  for (const char tag : "IsbB"s) {
    ExpectLost(Tagged(tag, 4, "abc"), "at byte 5: needed 4 bytes, found 3");
    ExpectLost(Tagged(tag, UINT32_MAX, "abc"), "needed 4294967295 bytes, found 3");
  }
  for (const char tag : "ltez"s) {
    ExpectLost(Tagged(tag, 4, "NTF"), "at byte 5: a count of 4 values, with 3 bytes left");
    ExpectLost(Tagged(tag, UINT32_MAX, "NTF"), "a count of 4294967295 values");
  }
  // A pair has two bytes at least.
  ExpectLost(Tagged('d', 2, "NTF"), "a count of 2 values, with 3 bytes left");
  ExpectLost(Tagged('d', 0x80000000, "NT"), "a count of 2147483648 values");
}

TEST(PlainReaderTest, TagsThatAreNoneAreDataLoss) {
  for (int tag = 0; tag < 256; ++tag) {
    if ("NTFiIfsbBltezdm"s.find(static_cast<char>(tag)) != std::string::npos) continue;
    ExpectLost(std::string(1, static_cast<char>(tag)) + std::string(20, '\0'),
               fmt::format("the tag {:#04x}", tag));
  }
}

TEST(PlainReaderTest, AStrThatIsNoUtf8IsDataLossUnlessItHasSurrogates) {
  for (const std::string& text : {"\xed\xa0\x80"s, "a\xed\xbf\xbfz"s, "\xed\x9f\xbf"s,
                                  "\xee\x80\x80"s, "\xf4\x8f\xbf\xbf"s}) {
    ExpectReads(Str(text), text);
  }
  for (const std::string& text :
       {"\xff"s, "\x80"s, "a\xc3"s, "\xc0\x80"s, "\xed\xa0"s, "\xed\xa0z"s, "\xe0\x80\x80"s,
        "\xf4\x90\x80\x80"s, "\xf0\x80\x80\x80"s, "ok\xed\xc0\x80"s}) {
    ExpectLost(Str(text), "no UTF-8");
    ExpectReads(Bytes(text), PlainBytes{text, false});
  }
}

TEST(PlainReaderTest, AKeyOrAnElementThatIsThereTwiceIsDataLoss) {
  ExpectLost(Many('d', {Str("a"), "N", Str("b"), "N", Str("a"), "T"}), "a key of a dict");
  ExpectLost(Many('d', {Many('t', {Int(1)}), "N", Many('t', {Int(1)}), "N"}), "a key of a dict");
  for (const char tag : "ez"s) {
    ExpectLost(Many(tag, {Int(1), Int(2), Int(1)}), "an element of a set");
  }
  for (const char tag : "lt"s) EXPECT_TRUE(ReadPlain(Many(tag, {Int(1), Int(1)})).ok());
  EXPECT_TRUE(ReadPlain(Many('d', {Str("1"), "N", Int(1), "N", Bytes("1"), "N"})).ok());
  // The same in containers of their own.
  EXPECT_TRUE(ReadPlain(Many('l', {Many('e', {Int(1)}), Many('e', {Int(1)})})).ok());
}

TEST(PlainReaderTest, ContainersAreAtMost32Deep) {
  const auto nested = [](int depth, const std::string& innermost) {
    std::string value = innermost;
    for (int i = 0; i < depth; ++i) value = Many(i % 2 == 0 ? 'l' : 't', {value});
    return value;
  };
  EXPECT_TRUE(ReadPlain(nested(32, "N")).ok());
  ExpectLost(nested(33, "N"), "containers more than 32 deep");
  EXPECT_TRUE(ReadPlain(nested(31, Many('d', {"N", "N"}))).ok());
  ExpectLost(nested(32, Many('d', {})), "containers more than 32 deep");
  // The three values of another kind are a level below it.
  EXPECT_TRUE(ReadPlain(nested(30, Made({Str("x")}))).ok());
  ExpectLost(nested(31, Made({Str("x")})), "containers more than 32 deep");
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += Tagged('l', 1, "");
  ExpectLost(deep + "N", "containers more than 32 deep");
  ExpectLost(std::string(200000, 'm'), "containers more than 32 deep");
}

TEST(PlainReaderTest, AnotherKindWithoutNameItemsOrPairsIsDataLoss) {
  ExpectLost("m" + Many('t', {}) + kNoItems + kNoPairs, "no kind of value");
  ExpectLost("m" + Many('t', {Int(1)}) + kNoItems + kNoPairs, "no kind of value");
  ExpectLost("m" + Str("x") + kNoItems + kNoPairs, "no kind of value");
  ExpectLost("m" + Many('t', {Str("x")}) + "N" + kNoPairs, "no kind of value");
  ExpectLost("m" + Many('t', {Str("x")}) + kNoItems + "N", "no kind of value");
  ExpectLost("m" + Many('t', {Str("x")}) + kNoItems + kNoItems, "no kind of value");
}

TEST(PlainReaderTest, ATensorWhoseSizesAndBytesDisagreeIsDataLoss) {
  ExpectLost(TensorOf("float32", {Int(2)}, "1234567"), "a tensor of 7 bytes, needed 8");
  ExpectLost(TensorOf("float32", {Int(2)}, "123456789"), "a tensor of 9 bytes, needed 8");
  ExpectLost(TensorOf("float32", {}, ""), "a tensor of 0 bytes, needed 4");
  ExpectLost(TensorOf("float32", {Int(0)}, "1234"), "a tensor of 4 bytes, needed 0");
  ExpectLost(TensorOf("int8", {Int(-1)}, "1"), "no sizes");
  ExpectLost(TensorOf("int8", {Int(-1), Int(-1)}, "1"), "no sizes");
  ExpectLost(TensorOf("int8", {"T"}, "1"), "no sizes");
  ExpectLost(TensorOf("int8", {Float(1)}, "1"), "no sizes");
}

TEST(PlainReaderTest, ATensorWhoseSizesOverflowIsDataLossInWhicheverOrder) {
  const int64_t huge = int64_t{1} << 32;
  ExpectLost(TensorOf("int8", {Int(huge), Int(huge)}, ""), "no sizes");
  ExpectLost(TensorOf("float32", {Int(int64_t{1} << 62)}, ""), "no sizes");
  ExpectLost(TensorOf("int8", {Int(huge + 1), Int(huge)}, std::string(8, 'x')), "no sizes");
  ExpectLost(TensorOf("int8", {Int(huge), Int(huge), Int(0)}, ""), "no sizes");
  ExpectLost(TensorOf("int8", {Int(0), Int(huge), Int(huge)}, ""), "no sizes");
}

TEST(PlainReaderTest, ATensorOfOtherPartsIsDataLoss) {
  const std::string name = Str("tensor");
  const std::string dtype = Str("int8");
  const std::string sizes = Many('t', {Int(1)});
  const std::string bytes = Bytes("x");
  ASSERT_TRUE(ReadPlain(Made({name, dtype, sizes, bytes})).ok());
  ExpectLost(Made({name}), "a tensor");
  ExpectLost(Made({name, dtype}), "a tensor");
  ExpectLost(Made({name, dtype, sizes}), "a tensor");
  ExpectLost(Made({name, dtype, sizes, bytes, "N"}), "a tensor");
  ExpectLost(Made({name, Int(3), sizes, bytes}), "a tensor");
  ExpectLost(Made({name, dtype, Int(1), bytes}), "a tensor");
  ExpectLost(Made({name, dtype, Many('l', {Int(1)}), bytes}), "a tensor");
  ExpectLost(Made({name, dtype, sizes, Str("x")}), "a tensor");
  ExpectLost(Made({name, dtype, sizes, Tagged('B', 1, "x")}), "a tensor");
  ExpectLost(Made({name, dtype, sizes, bytes}, Many('l', {"N"})), "a tensor");
  ExpectLost(Made({name, dtype, sizes, bytes}, kNoItems, Many('d', {"N", "N"})), "a tensor");
}

TEST(PlainReaderTest, FlippedBytesAreReadOrDataLoss) {
  const std::string whole = Rich();
  int read = 0;
  int lost = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    std::string bytes = whole;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      bytes[random.Below(bytes.size())] ^= static_cast<char>(1 + random.Below(255));
    }
    const absl::Status status = ReadPlain(bytes).status();
    ASSERT_TRUE(status.ok() || absl::IsDataLoss(status)) << status << " " << seed;
    ++(status.ok() ? read : lost);
  }
  EXPECT_GT(read, 0) << "what is flipped within a number is another number";
  EXPECT_GT(lost, 1000);
}

TEST(PlainReaderTest, DrawnTagsAreReadOrDataLoss) {
  int read = 0;
  for (uint64_t seed = 0; seed < 50000; ++seed) {
    Random random(seed);
    std::string bytes;
    for (uint64_t n = 1 + random.Below(12); n > 0; --n) {
      const char tag = "NTFiIfsbBltezdm"s[random.Below(15)];
      bytes += tag;
      if ("if"s.find(tag) != std::string::npos) bytes += Number(random.Next(), 8);
      if ("IsbBltezd"s.find(tag) != std::string::npos) bytes += Number(random.Below(3), 4);
    }
    const absl::Status status = ReadPlain(bytes).status();
    ASSERT_TRUE(status.ok() || absl::IsDataLoss(status)) << status << " " << seed;
    read += status.ok();
  }
  EXPECT_GT(read, 100);
}

// --- the header of extras ---

std::string Header(uint16_t format, uint16_t min_reader) {
  return "UNRFXTRA" + Number(format, 2) + Number(min_reader, 2) + Number(0, 4);
}

TEST(TorchExtrasTest, AreADictBehindAHeader) {
  const auto record = ReadTorchExtras(Header(5, 5) + Rich());
  ASSERT_TRUE(record.ok()) << record.status();
  ASSERT_NE(record->Find("step"), nullptr);
  EXPECT_EQ(*record->Find("step"), PlainValue{int64_t{-7}});
}

TEST(TorchExtrasTest, OfALaterReleaseThatThisOneMayReadAreRead) {
  EXPECT_TRUE(ReadTorchExtras(Header(9, 5) + Rich()).ok());
  const absl::Status status = ReadTorchExtras(Header(9, 6) + Rich()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("format 9, for readers of format 6: this release reads format 5"));
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadTorchExtras(Header(9, 0x100) + "junk").status()));
}

TEST(TorchExtrasTest, OfAnotherOriginAreNotFound) {
  for (const std::string& extras :
       {""s, "UNRFXTR"s, "UNRFXTRB"s, "UNRFTDCP\5\0\5\0\0\0\0\0N"s, "\x80\x05}."s, Rich()}) {
    EXPECT_TRUE(absl::IsNotFound(ReadTorchExtras(extras).status())) << extras;
  }
}

TEST(TorchExtrasTest, EachTruncationBehindTheMagicIsDataLoss) {
  const std::string whole = Header(5, 5) + Rich();
  for (size_t bytes = 8; bytes < whole.size(); ++bytes) {
    const absl::Status status = ReadTorchExtras(whole.substr(0, bytes)).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << bytes << " " << status;
  }
}

TEST(TorchExtrasTest, WhatIsNoRecordIsDataLoss) {
  for (const std::string& value : {"N"s, Many('l', {}), Rich() + "N", Made({Str("OrderedDict")})}) {
    const absl::Status status = ReadTorchExtras(Header(5, 5) + value).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  }
}

}  // namespace
}  // namespace unreft::durable
