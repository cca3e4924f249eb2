#include "smp/memory/memory_plan.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/control_page.h"
#include "base/format.h"
#include "base/guard_header.h"
#include "base/node_header.h"
#include "smp/core/records_size.h"

namespace unreft::smp {
namespace {

// Of a record beside its descriptions: the group and its members' slabs.
constexpr uint64_t kRecordBytesPerSlab = 64;
constexpr uint64_t kRecordBytesFixed = 4096;
// Windows of positions that are decoded at a time.
constexpr size_t kWindowsDecoded = 4;

SlotGeometry GeometryOf(uint32_t block_bytes, const SlotNeeds& needs) {
  return MakeSlotGeometry(SlotId{0}, block_bytes, needs.manifest_bytes, needs.extras_bytes,
                          needs.data_bytes);
}

}  // namespace

uint64_t MemoryPlan::Sum() const {
  return SumBytes(SumBytes(slot_bytes, guard_bytes), SumBytes(staging_bytes, control_bytes));
}

MemoryPlan PlanMemory(const NodeOptions& options, std::span<const RankNeeds> ranks) {
  MemoryPlan plan;
  std::vector<SlotNeeds> slabs;
  std::vector<uint64_t> state_bytes;
  for (const RankNeeds& rank : ranks) {
    slabs.push_back(rank.slot);
    state_bytes.push_back(rank.state_bytes);
    plan.slot_bytes += options.SlotsPerRank() * SlotBytes(options.block_bytes, rank.slot);
  }
  plan.slots = options.SlotsPerRank() * ranks.size();
  if (options.parity_chunks > 0) {
    const ec::CodeShape shape{options.data_chunks, options.parity_chunks};
    plan.guards = options.SlotsPerRank();
    plan.guard_bytes = plan.guards * GuardBytes(options.block_bytes,
                                                GuardNeedsFor(shape, options.block_bytes, slabs));
  }
  plan.staging_bytes = StagingBytes(options, state_bytes);
  plan.control_bytes = ControlBytes(options.nodes, ranks.size());
  return plan;
}

uint64_t SlotBytes(uint32_t block_bytes, const SlotNeeds& needs) {
  return SlotSegmentBytes(GeometryOf(block_bytes, needs));
}

uint64_t GuardBytes(uint32_t block_bytes, const GuardNeeds& needs) {
  return GuardSegmentBytes(MakeGuardGeometry(0, block_bytes, needs.record_bytes, needs.chunks,
                                             needs.sources, needs.positions));
}

uint64_t DescriptionBytes(const SlotGeometry& g) {
  return g.manifest_capacity + g.crc_capacity + g.extras_capacity + kRecordBytesPerSlab;
}

uint64_t DescriptionBytes(uint32_t block_bytes, const SlotNeeds& needs) {
  return DescriptionBytes(GeometryOf(block_bytes, needs));
}

GuardNeeds GuardNeedsFor(ec::CodeShape shape, uint32_t block_bytes,
                         std::span<const SlotNeeds> slabs) {
  uint64_t blocks = 0;
  uint64_t description_bytes = 0;
  for (const SlotNeeds& slab : slabs) {
    blocks += BlockCount(slab.data_bytes, block_bytes);
    description_bytes += DescriptionBytes(block_bytes, slab);
  }
  const absl::StatusOr<ec::StripeLayout> layout =
      ec::StripeLayout::Make(shape, std::vector<uint64_t>(shape.n(), blocks));
  UNREFT_CHECK(layout.ok(), "{}", layout.status().message());
  GuardNeeds needs;
  needs.chunks = shape.m;
  needs.sources = shape.k;
  needs.positions = layout->positions();
  needs.record_bytes = GuardRecordBytes(shape.n() * slabs.size(), shape.m * description_bytes);
  return needs;
}

uint64_t GuardRecordBytes(uint64_t slabs, uint64_t description_bytes) {
  return kRecordBytesFixed + slabs * kRecordBytesPerSlab + description_bytes;
}

uint64_t StateBytes(std::span<const TensorSpec> tensors) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes = SumBytes(bytes, ShardBytes(tensor));
  return bytes;
}

uint64_t StagingBytes(const NodeOptions& options, std::span<const uint64_t> state_bytes) {
  if (options.nodes <= 1 || state_bytes.empty()) return 0;
  const uint64_t block_bytes = options.block_bytes;
  uint64_t blocks = 0;
  for (const uint64_t bytes : state_bytes) {
    blocks += std::max<uint64_t>(1, BlockCount(bytes, options.block_bytes));
  }
  const uint64_t most =
      std::max<uint64_t>(options.restore_staging_bytes / block_bytes, state_bytes.size());
  return std::min(blocks, most) * block_bytes;
}

uint64_t ControlBytes(uint64_t nodes, uint64_t ranks) {
  return kNodeSegmentBytes + RecordsBytes(nodes) + ranks * kControlSegmentBytes;
}

TileShares TileSharesOf(const NodeOptions& options) {
  const size_t window = options.protect_window;
  const size_t lanes = options.SlotsPerRank() * options.parity_chunks;
  return {.encoding = (lanes + 1) * window, .decoding = kWindowsDecoded * window};
}

uint64_t ScratchBytes(const NodeOptions& options) {
  const uint64_t groups = options.nodes / (options.data_chunks + options.parity_chunks);
  if (options.parity_chunks == 0 || groups == 0) return 0;
  const uint64_t members = (options.nodes + groups - 1) / groups;
  const TileShares sets = TileSharesOf(options);
  const uint64_t tiles =
      sets.encoding * members + sets.decoding * (members - options.parity_chunks);
  return tiles * options.block_bytes;
}

}  // namespace unreft::smp
