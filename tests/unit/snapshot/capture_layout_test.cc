// CaptureLayout: the buckets cover every byte of the slab once. SampleRanges: alike on all
// replicas.

#include "snapshot/capture_layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/crc32c.h"
#include "snapshot/replica_samples.h"

namespace unreft::snapshot {
namespace {

TensorSpec Spec(const std::string& name, uint64_t elements) {
  return {.name = name,
          .dtype = Dtype::kFloat32,
          .global_shape = {elements},
          .offset = {0},
          .extent = {elements}};
}

// How often each byte of the slab is written, by whatever.
std::vector<int> Coverage(const CaptureLayout& layout) {
  std::vector<int> writes(layout.padded_bytes());
  const auto add = [&](uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end; ++at) ++writes.at(at);
  };
  for (const CopyPiece& piece : layout.volatile_pieces()) {
    add(piece.target_offset, piece.target_offset + piece.bytes);
  }
  uint64_t begin = 0;
  for (const Bucket& bucket : layout.buckets()) {
    EXPECT_GT(bucket.slab_end, begin);
    for (const CopyPiece& piece : bucket.device_pieces) {
      EXPECT_GE(piece.target_offset, begin);
      EXPECT_LE(piece.target_offset + piece.bytes, bucket.slab_end);
      add(piece.target_offset, piece.target_offset + piece.bytes);
    }
    for (const CopyPiece& piece : bucket.pieces) {
      EXPECT_GE(piece.target_offset, begin);
      EXPECT_LE(piece.target_offset + piece.bytes, bucket.slab_end);
      add(piece.target_offset, piece.target_offset + piece.bytes);
    }
    for (const layout::ByteRange& range : bucket.zeros) add(range.begin, range.end);
    begin = bucket.slab_end;
  }
  EXPECT_EQ(begin, layout.padded_bytes());
  return writes;
}

TEST(CaptureLayoutTest, EveryByteOfTheSlabIsWrittenOnce) {
  std::vector<TensorSpec> specs = {Spec("a", 1), Spec("b", 777), Spec("c", 3), Spec("d", 5000)};
  specs[2].is_volatile = true;
  specs[3].replica_count = 3;
  specs[3].replica_index = 1;
  const auto table = *layout::TensorTable::Create(specs);
  std::vector<std::byte> memory(5000 * 4);
  const std::vector<ShardMemory> data(4, {memory.data()});
  for (uint64_t bucket_bytes : {64, 100, 256, 1000, 4096, 1 << 20}) {
    const auto layout =
        CaptureLayout::Make(table, data, {.block_bytes = 256, .bucket_bytes = bucket_bytes});
    EXPECT_EQ(layout->padded_bytes() % 256, 0u);
    EXPECT_EQ(Coverage(*layout), std::vector<int>(layout->padded_bytes(), 1)) << bucket_bytes;
    for (const Bucket& bucket : layout->buckets()) {
      uint64_t bytes = 0;
      for (const CopyPiece& piece : bucket.pieces) bytes += piece.bytes;
      EXPECT_LE(bytes, bucket_bytes);
    }
  }
}

// With checksums every piece lies in one block and has a place of its own, and what is put together
// from the pieces' CRCs is that of the block.
TEST(CaptureLayoutTest, CrcsOfBlocksArePutTogetherFromThoseOfPieces) {
  std::vector<TensorSpec> specs = {Spec("a", 1),    Spec("b", 777), Spec("c", 300), Spec("d", 5000),
                                   Spec("host", 9), Spec("e", 64),  Spec("f", 33)};
  specs[2].is_volatile = true;
  specs[3].replica_count = 3;
  specs[3].replica_index = 1;
  specs[6].is_volatile = true;
  const auto table = *layout::TensorTable::Create(specs);
  std::vector<std::byte> memory(5000 * 4);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * i >> 4);
  std::vector<ShardMemory> data(specs.size(), {memory.data(), true});
  data[4].on_device = false;
  data[6].on_device = false;
  for (uint64_t bucket_bytes : {64, 100, 256, 1024, 4096, 1 << 20}) {
    const auto layout = CaptureLayout::Make(
        table, data, {.block_bytes = 256, .bucket_bytes = bucket_bytes, .checksum = true});
    EXPECT_EQ(Coverage(*layout), std::vector<int>(layout->padded_bytes(), 1));
    std::vector<std::byte> slab(layout->padded_bytes());
    std::vector<uint32_t> crcs(layout->crc_count());
    std::vector<int> numbered(layout->crc_count());
    const auto copy = [&](const CopyPiece& piece) {
      ASSERT_LT(piece.crc, crcs.size());
      ++numbered[piece.crc];
      EXPECT_EQ(piece.target_offset / 256, (piece.target_offset + piece.bytes - 1) / 256);
      const std::byte* const source = data[piece.tensor].data + piece.begin;
      std::memcpy(slab.data() + piece.target_offset, source, piece.bytes);
      crcs[piece.crc] = Crc32c({source, piece.bytes});
    };
    for (const CopyPiece& piece : layout->volatile_pieces()) copy(piece);
    for (const Bucket& bucket : layout->buckets()) {
      for (const CopyPiece& piece : bucket.pieces) copy(piece);
      for (const CopyPiece& piece : bucket.device_pieces) copy(piece);
    }
    EXPECT_EQ(numbered, std::vector<int>(crcs.size(), 1));
    std::vector<uint32_t> needed;
    for (size_t at = 0; at < slab.size(); at += 256) {
      needed.push_back(Crc32c(std::span(slab).subspan(at, 256)));
    }
    EXPECT_EQ(layout->BlockCrcs(crcs), needed) << bucket_bytes;
  }
}

TEST(CaptureLayoutTest, WithoutADeviceOrTheOptionNoPieceHasACrc) {
  const auto table = *layout::TensorTable::Create({Spec("a", 1000)});
  std::vector<std::byte> memory(4000);
  for (const bool on_device : {false, true}) {
    const ShardMemory data{memory.data(), on_device};
    const auto layout =
        CaptureLayout::Make(table, {&data, 1}, {.block_bytes = 256, .checksum = !on_device});
    EXPECT_EQ(layout->crc_count(), 0u);
    ASSERT_EQ(layout->buckets().size(), 1u);
    EXPECT_EQ(layout->buckets()[0].pieces.size() + layout->buckets()[0].device_pieces.size(), 1u);
  }
}

TEST(CaptureLayoutTest, NothingToCapture) {
  const auto layout = CaptureLayout::Make(layout::TensorTable(), {}, {});
  EXPECT_EQ(layout->padded_bytes(), 0u);
  EXPECT_TRUE(layout->buckets().empty());
}

TEST(CaptureLayoutTest, OnlyReplicatedTensorsAreSampled) {
  std::vector<TensorSpec> specs = {Spec("a", 10), Spec("b", 20)};
  specs[1].replica_count = 2;
  std::vector<std::byte> memory(100);
  const std::vector<ShardMemory> data(2, {memory.data()});
  const auto layout = CaptureLayout::Make(*layout::TensorTable::Create(specs), data, {});
  ASSERT_EQ(layout->samples().size(), 1u);
  EXPECT_EQ(layout->samples()[0].bytes, 80u);
}

TEST(SampleRangesTest, SmallShardsAreSampledWhole) {
  EXPECT_TRUE(SampleRanges(0).empty());
  for (uint64_t bytes : {uint64_t{1}, kSampleBytes, kSamplesMax * kSampleBytes}) {
    const auto ranges = SampleRanges(bytes);
    ASSERT_EQ(ranges.size(), 1u);
    EXPECT_EQ(ranges[0].begin, 0u);
    EXPECT_EQ(ranges[0].end, bytes);
  }
}

TEST(SampleRangesTest, LargeShardsAreSampledEvenlyWithBothEnds) {
  for (uint64_t bytes : {kSamplesMax * kSampleBytes + 1, uint64_t{1} << 20, uint64_t{1} << 40}) {
    const auto ranges = SampleRanges(bytes);
    ASSERT_EQ(ranges.size(), kSamplesMax);
    EXPECT_EQ(ranges.front().begin, 0u);
    EXPECT_EQ(ranges.back().end, bytes);
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(ranges[i].end - ranges[i].begin, kSampleBytes);
      EXPECT_GE(ranges[i].begin, i == 0 ? 0 : ranges[i - 1].end);
    }
  }
}

}  // namespace
}  // namespace unreft::snapshot
