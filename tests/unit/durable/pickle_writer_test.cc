#include "durable/pickle_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace unreft::durable {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using namespace std::string_literals;

// What `add` adds, between the opcodes with which each pickle begins and ends.
template <typename Add>
std::string Added(Add add) {
  PickleWriter pickle;
  add(pickle);
  const std::string all = std::move(pickle).Finish();
  EXPECT_THAT(all, StartsWith("\x80\x02"));
  EXPECT_THAT(all, EndsWith("."));
  return all.substr(2, all.size() - 3);
}

std::string IntOf(int64_t value) {
  return Added([&](PickleWriter& pickle) { pickle.Int(value); });
}

std::string UintOf(uint64_t value) {
  return Added([&](PickleWriter& pickle) { pickle.Uint(value); });
}

std::string FloatOf(double value) {
  return Added([&](PickleWriter& pickle) { pickle.Float(value); });
}

std::string StringOf(std::string_view text) {
  return Added([&](PickleWriter& pickle) { pickle.String(text); });
}

TEST(PickleWriterTest, ConstantsAreOneByteEach) {
  EXPECT_EQ(Added([](PickleWriter& pickle) { pickle.None(); }), "N");
  EXPECT_EQ(Added([](PickleWriter& pickle) { pickle.Bool(true); }), "\x88");
  EXPECT_EQ(Added([](PickleWriter& pickle) { pickle.Bool(false); }), "\x89");
}

TEST(PickleWriterTest, AnIntHasTheFewestBytesThatHoldItsSign) {
  EXPECT_EQ(IntOf(0), "K\0"s);
  EXPECT_EQ(IntOf(255), "K\xff");
  EXPECT_EQ(IntOf(256), "M\0\x01"s);
  EXPECT_EQ(IntOf(65535), "M\xff\xff");
  EXPECT_EQ(IntOf(65536), "J\0\0\x01\0"s);
  EXPECT_EQ(IntOf(-1), "J\xff\xff\xff\xff");
  EXPECT_EQ(IntOf(INT32_MAX), "J\xff\xff\xff\x7f");
  EXPECT_EQ(IntOf(INT32_MIN), "J\0\0\0\x80"s);
  EXPECT_EQ(IntOf(int64_t{INT32_MAX} + 1), "\x8a\x05\0\0\0\x80\0"s);
  EXPECT_EQ(IntOf(int64_t{INT32_MIN} - 1), "\x8a\x05\xff\xff\xff\x7f\xff"s);
  EXPECT_EQ(IntOf((int64_t{1} << 39) - 1), "\x8a\x05\xff\xff\xff\xff\x7f");
  EXPECT_EQ(IntOf(int64_t{1} << 39), "\x8a\x06\0\0\0\0\x80\0"s);
  EXPECT_EQ(IntOf(-(int64_t{1} << 39)), "\x8a\x05\0\0\0\0\x80"s);
  EXPECT_EQ(IntOf(INT64_MAX), "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f");
  EXPECT_EQ(IntOf(INT64_MIN), "\x8a\x08\0\0\0\0\0\0\0\x80"s);
}

TEST(PickleWriterTest, AnUnsignedIntIsNeverNegative) {
  EXPECT_EQ(UintOf(7), IntOf(7));
  EXPECT_EQ(UintOf(INT64_MAX), IntOf(INT64_MAX));
  EXPECT_EQ(UintOf(uint64_t{1} << 63), "\x8a\x09\0\0\0\0\0\0\0\x80\0"s);
  EXPECT_EQ(UintOf(UINT64_MAX), "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0"s);
}

TEST(PickleWriterTest, ABigIntIsItsBytesUpToTheLengthThatTorchReads) {
  const std::string longest(PickleWriter::kBigIntBytesMax, '\x11');
  EXPECT_EQ(Added([&](PickleWriter& pickle) { pickle.BigInt(longest); }), "\x8a\xff" + longest);
  PickleWriter pickle;
  EXPECT_DEATH(pickle.BigInt(longest + '\0'), "an int of 256 bytes");
}

TEST(PickleWriterTest, AFloatIsItsBitsWithTheSignFirst) {
  EXPECT_EQ(FloatOf(1.5), "G\x3f\xf8\0\0\0\0\0\0"s);
  EXPECT_EQ(FloatOf(-0.0), "G\x80\0\0\0\0\0\0\0"s);
  EXPECT_EQ(FloatOf(std::numeric_limits<double>::infinity()), "G\x7f\xf0\0\0\0\0\0\0"s);
}

TEST(PickleWriterTest, AStrIsItsUtf8AsItIs) {
  EXPECT_EQ(StringOf(""), "X\0\0\0\0"s);
  EXPECT_EQ(StringOf("a\0b"s), "X\x03\0\0\0a\0b"s);
  EXPECT_EQ(StringOf("\xed\xa0\x80"), "X\x03\0\0\0\xed\xa0\x80"s);
  EXPECT_EQ(StringOf(std::string(258, 'x')), "X\x02\x01\0\0"s + std::string(258, 'x'));
}

TEST(PickleWriterTest, BytesAreTheCharactersOfTheSameNumbers) {
  EXPECT_EQ(Added([](PickleWriter& pickle) { pickle.Bytes("a\x7f\x80\xff", false); }),
            "c_codecs\nencode\nq\0(X\x06\0\0\0a\x7f\xc2\x80\xc3\xbfX\x06\0\0\0latin1q\x01tR"s);
  EXPECT_EQ(Added([](PickleWriter& pickle) { pickle.Bytes("", true); }),
            "c__builtin__\nbytearray\nq\0(X\0\0\0\0X\x06\0\0\0latin1q\x01tR"s);
}

TEST(PickleWriterTest, GlobalsAndSharedStringsAreWrittenOnce) {
  const auto add = [](PickleWriter& pickle) {
    for (int i = 0; i < 2; ++i) {
      pickle.Global("torch", "Size");
      pickle.SharedString("torch");
      pickle.String("torch");
    }
  };
  EXPECT_EQ(Added(add),
            "ctorch\nSize\nq\0X\x05\0\0\0torchq\x01X\x05\0\0\0torch"
            "h\0h\x01X\x05\0\0\0torch"s);
}

TEST(PickleWriterTest, References256AndMoreHaveFourBytes) {
  const auto add = [](PickleWriter& pickle) {
    for (int i = 0; i < 258; ++i) pickle.SharedString(std::to_string(i));
    for (const char* text : {"255", "256", "257"}) pickle.SharedString(text);
  };
  const std::string added = Added(add);
  EXPECT_THAT(added, HasSubstr("255q\xffX\x03\0\0\0"s
                               "256r\0\x01\0\0X\x03\0\0\0"s
                               "257r\x01\x01\0\0"s));
  EXPECT_THAT(added, EndsWith("h\xffj\0\x01\0\0j\x01\x01\0\0"s));
}

TEST(PickleWriterTest, ContainersEncloseWhatIsAddedBetween) {
  const auto add = [](PickleWriter& pickle) {
    pickle.BeginTuple();
    pickle.BeginList();
    pickle.Int(1);
    pickle.EndList();
    pickle.BeginDict();
    pickle.Int(2);
    pickle.None();
    pickle.EndDict();
    pickle.EndTuple();
  };
  EXPECT_EQ(Added(add), "(](K\x01"s + "e}(K\x02Nut");
}

TEST(PickleWriterTest, ObjectsAreCalledMadeAndBuilt) {
  const auto add = [](PickleWriter& pickle) {
    pickle.Global("m", "C");
    pickle.BeginTuple();
    pickle.EndTuple();
    pickle.NewObject();
    pickle.BeginPairs();
    pickle.EndPairs();
    pickle.None();
    pickle.Build();
    pickle.BeginTuple();
    pickle.EndTuple();
    pickle.PersistentId();
    pickle.Reduce();
  };
  EXPECT_EQ(Added(add), "cm\nC\nq\0(t\x81(uNb(tQR"s);
}

}  // namespace
}  // namespace unreft::durable
