#include "durable/dcp_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace unreft::durable {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::StartsWith;

using namespace std::string_literals;

// As the pickle has a str: its length, its bytes.
std::string Str(const std::string& text) {
  return "X"s + static_cast<char>(text.size()) + "\0\0\0"s + text;
}

DcpEntry Value(const std::string& key, const DcpChunk& chunk) {
  return {key, {key}, false, Dtype::kFloat32, {}, {chunk}};
}

DcpEntry Matrix(const std::string& key) {
  DcpEntry entry{key, {"model", key}, true, Dtype::kBfloat16, {4, 6}, {}};
  entry.chunks.push_back({{0, 0}, {4, 2}, "a.distcp", 0, 700});
  entry.chunks.push_back({{0, 2}, {4, 4}, "b.distcp", 700, 800});
  return entry;
}

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

TEST(DcpMetadataTest, OfNothingIsThreeEmptyDicts) {
  EXPECT_EQ(EncodeDcpMetadata({}),
            "\x80\x02"
            "ctorch.distributed.checkpoint.metadata\nMetadata\nq\0(t\x81}("s +
                Str("state_dict_metadata") + "q\x01}(u" + Str("planner_data") + "q\x02}(u" +
                Str("storage_data") + "q\x03}(u" + Str("storage_meta") + "q\x04N" + Str("version") +
                "q\x05" + Str("1.0.0") + "ub.");
}

TEST(DcpMetadataTest, AValueHasAKeyAPathAndAPlace) {
  DcpEntry entry = Value("a.0", {{}, {}, "f", 258, 7});
  entry.path = {"a", int64_t{0}};
  const std::string bytes = EncodeDcpMetadata({&entry, 1});
  EXPECT_THAT(bytes, HasSubstr("}(" + Str("a.0") +
                               "q\x02"
                               "ctorch.distributed.checkpoint.metadata\nBytesStorageMetadata\n"
                               "q\x03(t\x81u"));
  EXPECT_THAT(bytes, HasSubstr("}(h\x02("s + Str("a") + "q\x05K\0tu"s));
  EXPECT_THAT(bytes, HasSubstr("MetadataIndex\nq\x07(t\x81}(" + Str("fqn") + "q\x08h\x02" +
                               Str("index") + "q\x09Nub"));
  EXPECT_THAT(bytes, HasSubstr("ctorch.distributed.checkpoint.filesystem\n_StorageInfo\nq\x0a" +
                               "(t\x81}("s + Str("relative_path") + "q\x0b" + Str("f") + "q\x0c" +
                               Str("offset") + "q\x0dM\x02\x01" + Str("length") + "q\x0eK\x07ub"));
}

TEST(DcpMetadataTest, ATensorHasItsTypeItsShapeAndItsChunks) {
  const DcpEntry entry = Matrix("w");
  const std::string bytes = EncodeDcpMetadata({&entry, 1});
  EXPECT_THAT(bytes, HasSubstr("TensorProperties\nq\x05(t\x81(ctorch\nbfloat16\nq\x06"));
  EXPECT_THAT(bytes, HasSubstr("_MEM_FORMAT_ENCODING\nq\x09(K\0tR\x89tb"s));
  EXPECT_THAT(bytes, HasSubstr(Str("size") + "q\x0a" + "ctorch\nSize\nq\x0b((K\x04K\x06ttR"));
  EXPECT_EQ(CountOf(bytes, "((K\0K\0ttR"s), 2)
      << "the first chunk's offset, there and in its index";
  EXPECT_EQ(CountOf(bytes, "((K\0K\x02ttR"s), 2);
  EXPECT_EQ(CountOf(bytes, "((K\x04K\x02ttR"), 1);
  EXPECT_EQ(CountOf(bytes, "((K\x04K\x04ttR"), 1);
  EXPECT_THAT(bytes, HasSubstr("M\xbc\x02"));
  EXPECT_THAT(bytes, HasSubstr("M\x20\x03"));
}

TEST(DcpMetadataTest, AScalarHasOneChunkWithoutDimensions) {
  const DcpEntry entry{"s", {"s"}, true, Dtype::kInt64, {}, {{{}, {}, "f", 0, 9}}};
  EXPECT_EQ(CountOf(EncodeDcpMetadata({&entry, 1}), "((ttR"), 4);
}

TEST(DcpMetadataTest, NumbersBeyond32BitsAreWhole) {
  const uint64_t at = uint64_t{3} << 40;
  const DcpEntry entry = Value("v", {{}, {}, "f", at, 7});
  EXPECT_THAT(EncodeDcpMetadata({&entry, 1}), HasSubstr("\x8a\x06\0\0\0\0\0\x03"s));
}

TEST(DcpMetadataTest, IsTheSameForTheSameEntriesAndKeepsTheirOrder) {
  const std::vector<DcpEntry> entries = {Value("z", {{}, {}, "f", 0, 1}), Matrix("a")};
  const std::string bytes = EncodeDcpMetadata(entries);
  EXPECT_EQ(bytes, EncodeDcpMetadata(entries));
  EXPECT_LT(bytes.find(Str("z")), bytes.find(Str("a")));
  EXPECT_THAT(bytes, StartsWith("\x80\x02"));
  EXPECT_THAT(bytes, EndsWith("ub."));
}

TEST(DcpMetadataTest, NamesAreWrittenOnceHoweverManyChunksThereAre) {
  std::vector<DcpEntry> entries;
  for (uint64_t i = 0; i < 1000; ++i) {
    DcpEntry entry{"layer" + std::to_string(i),
                   {"layer" + std::to_string(i)},
                   true,
                   Dtype::kFloat32,
                   {1000, 4096},
                   {}};
    for (uint64_t k = 0; k < 100; ++k) {
      entry.chunks.push_back({{k * 10, 0}, {10, 4096}, "rank" + std::to_string(k), i << 20, 99});
    }
    entries.push_back(std::move(entry));
  }
  const std::string bytes = EncodeDcpMetadata(entries);
  for (const char* name : {"ctorch\nSize", "MetadataIndex", "_StorageInfo", "rank57", "layer577",
                           "relative_path", "ChunkStorageMetadata", "TensorProperties"}) {
    EXPECT_EQ(CountOf(bytes, name), 1) << name;
  }
  EXPECT_THAT(bytes.size(), Lt(150 * 100'000));
}

TEST(DcpMetadataTest, ChecksTheDimensionsOfChunks) {
  DcpEntry entry = Matrix("w");
  entry.chunks[1].extent = {4};
  EXPECT_DEATH(EncodeDcpMetadata({&entry, 1}), "'w': a chunk needs 2 dimensions, found 2 and 1");
  entry = Value("v", {});
  entry.chunks.clear();
  EXPECT_DEATH(EncodeDcpMetadata({&entry, 1}), "'v': a value needs one chunk .* found 0 chunks");
  entry = Value("v", {{0}, {1}, "f", 0, 1});
  EXPECT_DEATH(EncodeDcpMetadata({&entry, 1}), "'v': a value needs one chunk without dimensions");
}

}  // namespace
}  // namespace unreft::durable
