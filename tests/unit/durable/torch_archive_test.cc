#include "durable/torch_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unreft::durable {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using namespace std::string_literals;

constexpr int kDtypes = 17;  // their numbers are 1 to 17

uint64_t NumberAt(std::string_view bytes, size_t at, size_t count) {
  uint64_t number = 0;
  for (size_t i = count; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes.at(at + i));
  return number;
}

// The CRC-32 bit by bit.
uint32_t SlowCrc32(std::string_view bytes) {
  uint32_t crc = UINT32_MAX;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

uint32_t Crc32Of(std::string_view bytes) { return ZipCrc32(std::as_bytes(std::span(bytes))); }

struct Member {
  std::string name;
  std::string content;
  uint64_t at = 0;  // of the content
};

// As the directory of the zip has them; everything that a zip says twice has to agree.
std::vector<Member> Unzip(const std::string& zip) {
  std::vector<Member> members;
  const size_t end = zip.size() - 22;
  EXPECT_EQ(NumberAt(zip, end, 4), 0x06054b50);
  const uint64_t count = NumberAt(zip, end + 10, 2);
  EXPECT_EQ(NumberAt(zip, end + 8, 2), count);
  const uint64_t directory_at = NumberAt(zip, end + 16, 4);
  EXPECT_EQ(directory_at + NumberAt(zip, end + 12, 4), end);
  uint64_t expected_at = 0;
  size_t at = directory_at;
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(NumberAt(zip, at, 4), 0x02014b50);
    const uint64_t local = NumberAt(zip, at + 42, 4);
    EXPECT_EQ(local, expected_at) << "a gap between members";
    EXPECT_EQ(NumberAt(zip, local, 4), 0x04034b50);
    const uint64_t flags = NumberAt(zip, at + 8, 2);
    EXPECT_EQ(NumberAt(zip, local + 6, 2), flags);
    EXPECT_EQ(NumberAt(zip, at + 10, 2), 0) << "compressed";
    const uint64_t name_bytes = NumberAt(zip, at + 28, 2);
    Member member{zip.substr(at + 46, name_bytes), {}, 0};
    EXPECT_EQ(zip.substr(local + 30, name_bytes), member.name);
    member.at = local + 30 + name_bytes + NumberAt(zip, local + 28, 2);
    const std::string checks = zip.substr(at + 16, 12);
    member.content = zip.substr(member.at, NumberAt(checks, 4, 4));
    EXPECT_EQ(NumberAt(checks, 0, 4), SlowCrc32(member.content)) << member.name;
    EXPECT_EQ(NumberAt(checks, 8, 4), member.content.size());
    expected_at = member.at + member.content.size();
    if (flags == 8) {
      EXPECT_EQ(zip.substr(local + 14, 12), std::string(12, '\0'));
      EXPECT_EQ(zip.substr(expected_at, 16), "PK\x07\x08" + checks);
      expected_at += 16;
    } else {
      EXPECT_EQ(flags, 0);
      EXPECT_EQ(zip.substr(local + 14, 12), checks);
    }
    at += 46 + name_bytes;
    members.push_back(std::move(member));
  }
  EXPECT_EQ(expected_at, directory_at);
  EXPECT_EQ(at, end);
  return members;
}

std::vector<std::string> NamesOf(const std::vector<Member>& members) {
  std::vector<std::string> names;
  for (const Member& member : members) names.push_back(member.name);
  return names;
}

std::string ArchiveOf(const ArchiveTensor& tensor, std::string_view data) {
  return ArchiveHead(tensor) + std::string(data) + ArchiveTail(tensor, Crc32Of(data));
}

std::string SomeBytes(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(37 * i + i / 7));
  return bytes;
}

PlainValue Of(auto value) { return PlainValue{std::move(value)}; }

PlainValue Text(std::string text) { return Of(std::move(text)); }

PlainValue Other(std::string kind, std::vector<PlainValue> arguments = {}, PlainDict pairs = {}) {
  return Of(PlainOther{std::move(kind), std::move(arguments), {}, std::move(pairs)});
}

PlainValue Sequence(PlainSequence::Kind kind, std::vector<PlainValue> items) {
  return Of(PlainSequence{kind, std::move(items)});
}

PlainValue List(std::vector<PlainValue> items) {
  return Sequence(PlainSequence::Kind::kList, std::move(items));
}

PlainValue Tuple(std::vector<PlainValue> items) {
  return Sequence(PlainSequence::Kind::kTuple, std::move(items));
}

// The pickle in the archive of a value.
std::string PickleOf(const PlainValue& value) {
  const auto archive = ArchiveOfValue(value);
  EXPECT_TRUE(archive.ok()) << archive.status();
  return archive.ok() ? Unzip(*archive).front().content : std::string();
}

void ExpectRefused(const PlainValue& value, const std::string& message) {
  for (const PlainValue& given : {value, List({Of(true), Tuple({value})})}) {
    const absl::Status status = ArchiveOfValue(given).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(ZipCrc32Test, IsTheChecksumOfZipAndContinues) {
  EXPECT_EQ(Crc32Of(""), 0);
  EXPECT_EQ(Crc32Of("123456789"), 0xcbf43926);
  const std::string bytes = SomeBytes(1000);
  EXPECT_EQ(Crc32Of(bytes), SlowCrc32(bytes));
  for (const size_t cut : {0, 1, 63, 512, 1000}) {
    const auto all = std::as_bytes(std::span(bytes));
    EXPECT_EQ(ZipCrc32(all.subspan(cut), ZipCrc32(all.first(cut))), SlowCrc32(bytes)) << cut;
  }
}

TEST(TorchArchiveTest, DataReachFromTheFirstElementToTheEndOfTheLast) {
  EXPECT_EQ(ArchiveDataBytes({Dtype::kFloat32, {}, {}}), 4);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kFloat32, {2, 3}, {3, 1}}), 24);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kFloat32, {2, 3}, {1, 2}}), 24);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kBfloat16, {3, 3}, {5, 1}}), 26);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kFloat64, {1000, 2}, {0, 1}}), 16);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kFloat64, {UINT64_MAX, 0}, {UINT64_MAX, 1}}), 0);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kUint8, {3, 3}, {UINT64_MAX / 2, 1}}), UINT64_MAX);
  EXPECT_EQ(ArchiveDataBytes({Dtype::kInt16, {uint64_t{1} << 63}, {1}}), UINT64_MAX);
}

TEST(TorchArchiveTest, EveryDtypeIsAnAlignedZipOfThePromisedSize) {
  for (int number = 1; number <= kDtypes; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    SCOPED_TRACE(DtypeName(dtype));
    for (const std::vector<uint64_t>& sizes : {{}, {7}, std::vector<uint64_t>(60, 1), {0}}) {
      const ArchiveTensor tensor{dtype, sizes, std::vector<uint64_t>(sizes.size(), 1)};
      const std::string data = SomeBytes(ArchiveDataBytes(tensor));
      const std::string archive = ArchiveOf(tensor, data);
      EXPECT_EQ(ArchiveBytes(tensor), archive.size());
      const auto members = Unzip(archive);
      ASSERT_THAT(NamesOf(members), ElementsAre("archive/data.pkl", "archive/byteorder",
                                                "archive/version", "archive/data/0"));
      EXPECT_EQ(members[1].content, "little");
      EXPECT_EQ(members[2].content, "3\n");
      EXPECT_EQ(members[3].content, data);
      EXPECT_EQ(members[3].at, ArchiveHead(tensor).size());
      EXPECT_EQ(members[3].at % kArchiveAlignment, 0);
    }
  }
}

TEST(TorchArchiveTest, APickleSaysWhereTheElementsOfTheTensorAre) {
  const std::string archive =
      ArchiveOf({Dtype::kFloat32, {2, 300}, {1, 2}}, std::string(2400, '\x01'));
  EXPECT_EQ(Unzip(archive)[0].content,
            "\x80\x02"
            "ctorch._utils\n_rebuild_tensor_v2\nq\0("
            "(X\x07\0\0\0storageq\x01"
            "ctorch\nFloatStorage\nq\x02X\x01\0\0\0000X\x03\0\0\0cpuq\x03M\x58\x02tQ"
            "K\0(K\x02M\x2c\x01t(K\x01K\x02t\x89"
            "ccollections\nOrderedDict\nq\x04(tRtR."s);
}

TEST(TorchArchiveTest, ADtypeWithoutAStorageClassIsNamedBesideItsBytes) {
  const std::string archive = ArchiveOf({Dtype::kUint16, {3}, {1}}, "abcdef");
  EXPECT_EQ(Unzip(archive)[0].content,
            "\x80\x02"
            "ctorch._utils\n_rebuild_tensor_v3\nq\0("
            "(X\x07\0\0\0storageq\x01"
            "ctorch.storage\nUntypedStorage\nq\x02X\x01\0\0\0000X\x03\0\0\0cpuq\x03K\x06tQ"
            "K\0(K\x03t(K\x01t\x89"
            "ccollections\nOrderedDict\nq\x04(tR"
            "ctorch\nuint16\nq\x05tR."s);
}

TEST(TorchArchiveTest, OnlyTheTwoChecksumsOfATailDependOnTheData) {
  const ArchiveTensor tensor{Dtype::kInt32, {4}, {1}};
  EXPECT_EQ(ArchiveHead(tensor), ArchiveHead(tensor));
  std::string tail = ArchiveTail(tensor, 0x04030201);
  const std::string other = ArchiveTail(tensor, 0);
  ASSERT_EQ(tail.size(), other.size());
  int found = 0;
  for (size_t at = 0; (at = tail.find("\x01\x02\x03\x04", at)) != std::string::npos; ++found) {
    tail.replace(at, 4, 4, '\0');
  }
  EXPECT_EQ(found, 2);
  EXPECT_EQ(tail, other);
}

TEST(TorchArchiveTest, TheLargestHasRoomIn32Bits) {
  const ArchiveTensor largest{Dtype::kUint8, {kArchiveDataBytesMax}, {1}};
  EXPECT_LE(ArchiveBytes(largest), kArchiveBytesMax);
  const std::string tail = ArchiveTail(largest, 0);
  EXPECT_EQ(NumberAt(tail, tail.size() - 6, 4),
            ArchiveHead(largest).size() + kArchiveDataBytesMax + 16)
      << "where the directory begins";
  EXPECT_DEATH(ArchiveHead({Dtype::kUint8, {kArchiveDataBytesMax + 1}, {1}}),
               "an archive of 4293918720 bytes of data, at most 4293918719");
  EXPECT_DEATH(ArchiveHead({Dtype::kUint8, {3}, {}}), "1 sizes and 0 strides");
  EXPECT_DEATH(ArchiveHead({static_cast<Dtype>(99), {}, {}}), "an archive of dtype 99");
}

TEST(TorchArchiveTest, AValueIsAZipWithAPickleAlone) {
  const PlainValue value = Of(PlainDict{{{Text("lr"), Of(0.5)}, {Text("n"), Of(PlainNone{})}}});
  const auto archive = ArchiveOfValue(value);
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_EQ(*archive, *ArchiveOfValue(value));
  EXPECT_THAT(NamesOf(Unzip(*archive)),
              ElementsAre("archive/data.pkl", "archive/byteorder", "archive/version"));
  EXPECT_EQ(Unzip(*archive)[0].content,
            "\x80\x02}(X\x02\0\0\0lrG\x3f\xe0\0\0\0\0\0\0X\x01\0\0\0nNu."s);
}

TEST(TorchArchiveTest, AValueHasTheTypesOfPython) {
  EXPECT_EQ(PickleOf(List({Of(true), Of(int64_t{7}), Of(PlainBigInt{"\x01\x02"})})),
            "\x80\x02](\x88K\x07\x8a\x02\x01\x02"
            "e.");
  EXPECT_EQ(PickleOf(Tuple({Of(PlainBytes{"b", false}), Of(PlainBytes{"b", true})})),
            "\x80\x02(c_codecs\nencode\nq\0(X\x01\0\0\0bX\x06\0\0\0latin1q\x01tR"
            "c__builtin__\nbytearray\nq\x02(X\x01\0\0\0bh\x01tRt."s);
  EXPECT_EQ(PickleOf(Sequence(PlainSequence::Kind::kSet, {Of(int64_t{1})})),
            "\x80\x02"
            "c__builtin__\nset\nq\0(](K\x01"
            "etR."s);
}

TEST(TorchArchiveTest, OtherKindsThatTorchReadsAreCalls) {
  EXPECT_EQ(PickleOf(Other("OrderedDict", {}, PlainDict{{{Text("a"), Of(true)}}})),
            "\x80\x02"
            "ccollections\nOrderedDict\nq\0(tR(X\x01\0\0\0a\x88u."s);
  EXPECT_EQ(PickleOf(Other("Counter", {Of(PlainDict{})})),
            "\x80\x02"
            "ccollections\nCounter\nq\0(}(utR."s);
  EXPECT_EQ(PickleOf(Other("Size", {Tuple({Of(int64_t{2})})})),
            "\x80\x02"
            "ctorch\nSize\nq\0((K\x02ttR."s);
  EXPECT_EQ(PickleOf(Other("device", {Text("cpu")})),
            "\x80\x02"
            "ctorch\ndevice\nq\0(X\x03\0\0\0cputR."s);
  EXPECT_EQ(PickleOf(Other("dtype", {Text("bfloat16")})),
            "\x80\x02"
            "ctorch\nbfloat16\nq\0."s);
  EXPECT_THAT(PickleOf(Other("complex", {Of(0.0), Of(1.0)})), HasSubstr("c__builtin__\ncomplex\n"));
}

TEST(TorchArchiveTest, TensorsInAValueAreAlignedMembers) {
  std::vector<PlainValue> tensors;
  for (int number = 1; number <= kDtypes; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    tensors.push_back(Of(PlainTensor{dtype, {2, 3}, SomeBytes(6 * DtypeBytes(dtype))}));
  }
  tensors.push_back(Of(PlainTensor{Dtype::kFloat32, {0, 5}, {}}));
  const auto archive = ArchiveOfValue(List(tensors));
  ASSERT_TRUE(archive.ok()) << archive.status();
  const auto members = Unzip(*archive);
  ASSERT_EQ(members.size(), 3 + tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Member& member = members[3 + i];
    EXPECT_EQ(member.name, "archive/data/" + std::to_string(i));
    EXPECT_EQ(member.content, tensors[i].As<PlainTensor>()->bytes);
    EXPECT_EQ(member.at % kArchiveAlignment, 0) << member.name;
  }
  EXPECT_THAT(members[0].content, HasSubstr("(K\x02K\x03t(K\x03K\x01t"));
}

TEST(TorchArchiveTest, RefusesWhatTorchWouldNotReadAgainByName) {
  ExpectRefused(Sequence(PlainSequence::Kind::kFrozenSet, {}), "a frozenset");
  ExpectRefused(Of(PlainBigInt{std::string(256, '\x01')}), "needs at most 255 bytes, found 256");
  ExpectRefused(Of(PlainTensor{Dtype::kInt64, {2}, "1234567"}),
                "a tensor of int64 cannot be written for torch.load(weights_only=True): its sizes "
                "need 16 bytes, found 7");
  ExpectRefused(Of(PlainTensor{static_cast<Dtype>(99), {0}, {}}), "a tensor of dtype 99");
  for (const char* kind : {"range", "slice", "deque", "defaultdict", "array", "number", "aside"}) {
    ExpectRefused(Other(kind, {Of(int64_t{1})}), "a value of kind '"s + kind + "'");
  }
}

TEST(TorchArchiveTest, RefusesKnownKindsWithOtherParts) {
  ExpectRefused(Other("OrderedDict", {Of(true)}), "'OrderedDict'");
  ExpectRefused(Other("Counter", {Of(true)}), "'Counter'");
  ExpectRefused(Other("complex", {Of(1.0)}), "'complex'");
  ExpectRefused(Other("Size", {Of(1.0)}), "'Size'");
  ExpectRefused(Other("device", {Of(1.0)}), "'device'");
  ExpectRefused(Other("device", {Text("cpu")}, PlainDict{{{Of(true), Of(true)}}}), "'device'");
  ExpectRefused(Of(PlainOther{"OrderedDict", {}, {Of(true)}, {}}), "'OrderedDict'");
  for (const char* name : {"", "float32\nsystem", "Size", "a.b"}) {
    ExpectRefused(Other("dtype", {Text(name)}), "'dtype'");
  }
  ExpectRefused(Other("a\nb"), "'a\\nb'");
}

TEST(TorchArchiveTest, RefusesMoreTensorsThanAZipCounts) {
  std::vector<PlainValue> tensors(65001, Of(PlainTensor{Dtype::kBool, {}, "\x01"}));
  ExpectRefused(List(tensors), "needs at most 65000 tensors in it, found 65001");
  tensors.pop_back();
  const auto archive = ArchiveOfValue(List(std::move(tensors)));
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_EQ(NumberAt(*archive, archive->size() - 12, 2), 65003);
}

}  // namespace
}  // namespace unreft::durable
