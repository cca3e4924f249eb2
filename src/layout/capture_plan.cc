#include "layout/capture_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/wire.h"
#include "layout/digest.h"

namespace unreft::layout {
namespace {

// How plans are made: another number for each way, so that releases that differ in it do not take
// each other's plans for the same.
constexpr uint16_t kPlanRule = 2;

struct DigestedPlan {
  uint16_t rule = kPlanRule;
  uint64_t table_digest = 0;
  CaptureMode mode = CaptureMode::kSharded;
  void Fields(auto& wire) { wire(rule, table_digest, mode); }
};

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// The upper half, as the lowest bits of the digest are little more than a parity.
uint64_t Draw(std::string_view name, uint32_t count) { return (Digest64(name) >> 32) % count; }

ByteRange PartOf(const TensorSpec& spec, CaptureMode mode) {
  const uint64_t bytes = ShardBytes(spec);
  if (mode == CaptureMode::kFull) return {0, bytes};
  return ReplicaPart(bytes, spec.replica_index, spec.replica_count, spec.name);
}

}  // namespace

ByteRange ReplicaPart(uint64_t shard_bytes, uint32_t index, uint32_t count, std::string_view name) {
  UNREFT_CHECK(index < count, "replica {} of {}", index, count);
  if (shard_bytes < kSmallShardBytes) return {0, index == Draw(name, count) ? shard_bytes : 0};
  const uint64_t units = RoundUp(shard_bytes, kPartAlignment) / kPartAlignment;
  // The first `units % count` replicas take one more; no product here can overflow.
  const auto cut = [&](uint64_t i) {
    return std::min(shard_bytes, (units / count * i + std::min(i, units % count)) * kPartAlignment);
  };
  return {cut(index), cut(uint64_t{index} + 1)};
}

CapturePlan CapturePlan::Make(const TensorTable& table, CaptureMode mode) {
  CapturePlan plan;
  plan.mode_ = mode;
  plan.digest_ = Digest64(EncodeWire(DigestedPlan{.table_digest = table.digest(), .mode = mode}));
  for (uint32_t tensor = 0; tensor < table.size(); ++tensor) {
    const ByteRange range = PartOf(table.specs()[tensor], mode);
    if (range.begin == range.end) continue;
    const CapturedPart part{.tensor = tensor,
                            .shard_begin = range.begin,
                            .bytes = range.end - range.begin,
                            .slab_offset = RoundUp(plan.data_bytes_, kPartAlignment)};
    plan.data_bytes_ = part.slab_offset + part.bytes;
    plan.parts_.push_back(part);
  }
  return plan;
}

}  // namespace unreft::layout
