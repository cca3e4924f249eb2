// Copies of slabs in the memory of the test, written and completed by what writes those of a job,
// and what each slab was.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/slot_header.h"
#include "durable/copy_finish.h"
#include "durable/copy_record.h"
#include "durable/part_writer.h"
#include "layout/digest.h"
#include "layout/manifest.h"
#include "layout/memory_order.h"
#include "layout/tensor_table.h"
#include "tests/fakes/memory_cold_store.h"
#include "tests/unit/layout_testing.h"

namespace unreft::durable {

inline const std::string kCopyId(16, 'i');
inline constexpr Version kCopyVersion{Timeline{3}, Step{1200}};
inline constexpr uint32_t kCopyBlockBytes = 4096;

// A rank's slab. The bytes of a shard depend on its name and its place alone, so that replicas
// agree; what no part has is zero.
class MemorySlab : public SlabReader {
 public:
  MemorySlab(std::vector<TensorSpec> specs, Rank rank, uint64_t world, layout::CaptureMode mode) {
    const auto table = layout::TensorTable::Create(std::move(specs));
    UNREFT_CHECK(table.ok(), "{}", std::string(table.status().message()));
    const auto plan = layout::CapturePlan::Make(*table, mode);
    manifest_.job = "job";
    manifest_.version = kCopyVersion;
    manifest_.rank = rank;
    manifest_.world = world;
    manifest_.layout_digest = plan.digest();
    manifest_.capture_mode = mode;
    manifest_.block_bytes = kCopyBlockBytes;
    manifest_.data_bytes = plan.data_bytes();
    manifest_.tensors = {table->specs().begin(), table->specs().end()};
    manifest_.parts = {plan.parts().begin(), plan.parts().end()};
    manifest_bytes_ = layout::EncodeManifest(manifest_);
    data_.resize(BlockCount(plan.data_bytes(), kCopyBlockBytes) * kCopyBlockBytes);
    for (const layout::CapturedPart& part : plan.parts()) {
      Random random = RandomOf(manifest_.tensors[part.tensor]);
      std::vector<std::byte> shard(part.shard_begin + part.bytes);
      for (std::byte& byte : shard) byte = static_cast<std::byte>(1 + random.Below(255));
      std::memcpy(data_.data() + part.slab_offset, shard.data() + part.shard_begin, part.bytes);
    }
  }

  const layout::SlotManifest& manifest() const override { return manifest_; }
  const std::string& manifest_bytes() const override { return manifest_bytes_; }
  const std::string& extras() const override { return extras_; }
  absl::StatusOr<uint32_t> Read(uint64_t block, std::span<std::byte> into) override {
    std::memcpy(into.data(), data_.data() + block * kCopyBlockBytes, kCopyBlockBytes);
    return Crc32c(into.first(kCopyBlockBytes));
  }

  const std::vector<std::byte>& data() const { return data_; }

 private:
  static Random RandomOf(const TensorSpec& spec) {
    uint64_t seed = layout::Digest64(spec.name);
    for (const uint64_t offset : spec.offset) seed = seed * 31 + offset;
    return Random(seed);
  }

  layout::SlotManifest manifest_;
  std::string manifest_bytes_;
  std::string extras_;
  std::vector<std::byte> data_;  // of whole blocks
};

// Has no copy yet: WriteCopy.
class WrittenCopyTest : public ::testing::Test {
 protected:
  static CopyOrder OrderOf(uint64_t world, const std::string& id = kCopyId) {
    CopyOrder order;
    order.set_job("job");
    order.set_id(id);
    order.set_timeline(kCopyVersion.timeline.value);
    order.set_step(kCopyVersion.step.value);
    order.set_world(world);
    return order;
  }

  // Of the tensors of each rank.
  void WriteCopy(std::vector<std::vector<TensorSpec>> ranks,
                 layout::CaptureMode mode = layout::CaptureMode::kSharded,
                 uint64_t item_bytes_max = 2000) {
    const CopyOrder order = OrderOf(ranks.size());
    const PartOrder part{
        .job = "job", .version = kCopyVersion, .id = kCopyId, .item_bytes_max = item_bytes_max};
    ASSERT_TRUE(store_.Put(kOrderFile, EncodeOrder(order)).ok());
    for (uint64_t rank = 0; rank < ranks.size(); ++rank) {
      slabs_.emplace_back(std::move(ranks[rank]), Rank{rank}, order.world(), mode);
      const absl::Status status =
          WriteSlab(slabs_.back(), store_, part, [](uint64_t, uint64_t) { return true; });
      ASSERT_TRUE(status.ok()) << status;
    }
    const auto finished = FinishCopy(store_, order, {});
    ASSERT_TRUE(finished.ok()) << finished.status();
  }

  // For another one to be written.
  void RemoveCopy() {
    const std::vector<ColdEntry> files = store_.List("").value();
    for (const ColdEntry& file : files) ASSERT_TRUE(store_.Remove(file.name).ok());
    slabs_.clear();
  }

  // Two ranks that share tensors by boxes and by replicas, of several types, sizes and orders.
  void WriteShardedCopy(uint64_t item_bytes_max = 2000) {
    std::vector<std::vector<TensorSpec>> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const std::vector<uint32_t> channels_last = {0, 2, 3, 1};
      const auto conv = layout::InMemoryOrder(
          Spec("model/conv", {16, 6, 3, 3}, {8 * rank, 0, 0, 0}, {8, 6, 3, 3}), channels_last);
      UNREFT_CHECK(conv.ok());
      ranks.push_back(
          {Spec("model/w", {60, 7}, {30 * rank, 0}, {30, 7}), *conv,
           Whole("model/shared", {37, 41}, rank, 2, Dtype::kBfloat16),
           Whole("model/odd", {1 + 12}, rank, 2, Dtype::kBool),
           Whole(rank == 0 ? "rank0/buffer/seen" : "rank1/buffer/seen", {}, 0, 1, Dtype::kInt64)});
    }
    WriteCopy(std::move(ranks), layout::CaptureMode::kSharded, item_bytes_max);
  }

  std::string Bytes(const std::string& file) { return store_.Get(file, uint64_t{1} << 30).value(); }

  // Puts other bytes in the place of a file.
  void Replace(const std::string& file, const std::string& bytes) {
    ASSERT_TRUE(store_.Remove(file).ok());
    ASSERT_TRUE(store_.Put(file, bytes).ok());
  }

  CopySlab RecordOf(Rank rank) { return DecodeSlab(Bytes(SlabFile(rank)), "").value(); }

  // As if the rank had written that record, and the copy had been completed with it.
  void ReplaceRecord(Rank rank, const CopySlab& slab) {
    const std::string bytes = EncodeSlab(slab);
    Replace(SlabFile(rank), bytes);
    CopyRecord record = DecodeRecord(Bytes(kRecordFile), "").value();
    record.set_slab_crcs(static_cast<int>(rank.value), Crc32c(std::as_bytes(std::span(bytes))));
    Replace(kRecordFile, EncodeRecord(record));
  }

  MemoryColdStore store_;
  std::vector<MemorySlab> slabs_;  // by rank
};

}  // namespace unreft::durable
