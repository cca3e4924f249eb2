#include "layout/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/unit/format_testing.h"

namespace unreft::layout {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The message with which the example, changed so, is refused.
std::string Refusal(const std::function<void(SlotManifest&)>& change,
                    absl::StatusCode code = absl::StatusCode::kDataLoss) {
  SlotManifest manifest = ExampleManifest();
  change(manifest);
  const absl::Status status = DecodeManifest(EncodeManifest(manifest)).status();
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(ManifestTest, ComesBackAsItWas) {
  const auto manifest = DecodeManifest(EncodeManifest(ExampleManifest()));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, ExampleManifest());
}

TEST(ManifestTest, ARankMayHoldOrCaptureNothing) {
  SlotManifest manifest = ExampleManifest();
  manifest.parts.clear();
  manifest.data_bytes = 0;
  EXPECT_TRUE(DecodeManifest(EncodeManifest(manifest)).ok());
  manifest.tensors.clear();
  EXPECT_TRUE(DecodeManifest(EncodeManifest(manifest)).ok());
}

TEST(ManifestTest, NamesItsSubject) {
  EXPECT_THAT(Refusal([](auto& m) { m.block_bytes = 0; }),
              AllOf(HasSubstr("manifest of rank 2"), HasSubstr("version 5:41")));
}

TEST(ManifestTest, RefusesOtherFormats) {
  EXPECT_THAT(Refusal([](auto& m) { m.format = 3, m.min_reader = 2; },
                      absl::StatusCode::kFailedPrecondition),
              AllOf(HasSubstr("rank 2"), HasSubstr("format 3"), HasSubstr("readers of 2"),
                    HasSubstr("knows 1")));
  EXPECT_THAT(Refusal([](auto& m) { m.format = 0; }), HasSubstr("found 0 and 1"));
  EXPECT_THAT(Refusal([](auto& m) { m.min_reader = 2; }), HasSubstr("found 1 and 2"));
}

TEST(ManifestTest, RefusesBadNumbers) {
  EXPECT_THAT(Refusal([](auto& m) { m.world = 2; }),
              AllOf(HasSubstr("rank 2"), HasSubstr("found 2")));
  EXPECT_THAT(Refusal([](auto& m) { m.block_bytes = 192; }), HasSubstr("found 192"));
  EXPECT_THAT(Refusal([](auto& m) { m.data_bytes = UINT64_MAX; }),
              AllOf(HasSubstr("4611686018427387904"), HasSubstr("18446744073709551615")));
  EXPECT_THAT(Refusal([](auto& m) { m.capture_mode = CaptureMode{9}; }), HasSubstr("found 9"));
}

// A world is counted up to, and a step has a next one.
TEST(ManifestTest, RefusesNumbersThatNoJobHas) {
  EXPECT_THAT(Refusal([](auto& m) { m.world = uint64_t{1} << 33; }),
              AllOf(HasSubstr("at most 1048576 ranks"), HasSubstr("found 8589934592")));
  EXPECT_THAT(Refusal([](auto& m) { m.version.step = Step{UINT64_MAX - 1}; }),
              HasSubstr("18446744073709551614"));
  EXPECT_THAT(Refusal([](auto& m) { m.version.timeline = Timeline{UINT64_MAX}; }),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(Refusal([](auto& m) { m.parent.step = Step{UINT64_MAX}; }),
              HasSubstr("parent 4:18446744073709551615"));
  EXPECT_THAT(Refusal([](auto& m) { m.parent.timeline = Timeline{UINT64_MAX}; }),
              HasSubstr("parent 18446744073709551615"));
}

TEST(ManifestTest, RefusesBadTensors) {
  EXPECT_THAT(
      Refusal([](auto& m) { m.tensors[0].extent[0] = 3; }),
      AllOf(HasSubstr("rank 2"), HasSubstr("'w'"), HasSubstr("extent 3"), HasSubstr("shape 4")));
  EXPECT_THAT(Refusal([](auto& m) { m.tensors[0].dtype = Dtype{77}; }), HasSubstr("dtype 77"));
}

TEST(ManifestTest, RefusesWhatIsNoMessageOrNotUtf8) {
  std::string bytes = EncodeManifest(ExampleManifest());
  bytes[bytes.find("\x0a\x01w") + 2] = '\xff';
  const std::string junk = "junk, and not a message";
  for (const std::string& bad : {bytes, junk, bytes.substr(0, bytes.size() - 1)}) {
    const absl::Status status = DecodeManifest(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("unreft.Manifest"), HasSubstr(std::to_string(bad.size()))));
  }
  EXPECT_THAT(std::string(DecodeManifest("").status().message()), HasSubstr("found 0 and 0"));
}

TEST(ManifestTest, RefusesADtypeThatWouldBecomeAnotherByNarrowing) {
  // The example's first dtype, 9, made 256 + 9 in the encoding: field 2, a varint.
  std::string bytes = EncodeManifest(ExampleManifest());
  const size_t tensor = bytes.find("\x0a\x01w\x10\x09");
  ASSERT_NE(tensor, std::string::npos);
  bytes.replace(tensor + 3, 2, std::string("\x10\x89\x02"));
  ASSERT_EQ(bytes[tensor - 1] & 0x80, 0);
  ++bytes[tensor - 1];  // the tensor's length
  const absl::Status status = DecodeManifest(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'w'"), HasSubstr("dtype 265")));
}

TEST(ManifestTest, RefusesBadParts) {
  EXPECT_THAT(Refusal([](auto& m) { m.parts[0].tensor = 3; }),
              AllOf(HasSubstr("tensor 3"), HasSubstr("found 3")));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[0].bytes = 0; }), HasSubstr("0 bytes"));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[0].bytes -= 2; }),
              AllOf(HasSubstr("'w'"), HasSubstr("4 bytes per element"), HasSubstr("4094")));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[0].shard_begin += 2; }), HasSubstr("4098"));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[0].shard_begin += 4; }),
              AllOf(HasSubstr("shard has 8192"), HasSubstr("4096 from byte 4100")));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[0].shard_begin = UINT64_MAX - 3; }), HasSubstr("8192"));
}

TEST(ManifestTest, RefusesPartsOutsideTheSlabOrOverEachOther) {
  EXPECT_THAT(Refusal([](auto& m) { m.data_bytes -= 1; }),
              AllOf(HasSubstr("slab has"), HasSubstr("found")));
  EXPECT_THAT(Refusal([](auto& m) { m.parts.back().slab_offset = UINT64_MAX - 63; }),
              HasSubstr("18446744073709551552"));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[1].slab_offset -= 64; }),
              AllOf(HasSubstr("at least 4096"), HasSubstr("found 4032")));
  EXPECT_THAT(Refusal([](auto& m) { m.parts[1].slab_offset += 8, m.data_bytes += 8; }),
              AllOf(HasSubstr("multiple of 64"), HasSubstr("found 4104")));
  EXPECT_THAT(Refusal([](auto& m) { std::swap(m.parts[0], m.parts[1]); }), HasSubstr("found 0"));
}

TEST(ManifestTest, TheRegionHoldsAnyNumbers) {
  SlotManifest manifest = ExampleManifest();
  const uint64_t most = ManifestBytesMax(manifest);
  EXPECT_GE(most, EncodeManifest(manifest).size());
  manifest.version = {Timeline{1}, Step{uint64_t{1} << 60}};
  manifest.attempt = Attempt{UINT64_MAX};
  EXPECT_GE(most, EncodeManifest(manifest).size());
}

}  // namespace
}  // namespace unreft::layout
