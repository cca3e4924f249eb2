// Sealed slots in a fake /dev/shm, as daemons leave them: the ranks of a version of one tensor that
// all share and one of each rank.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/slot_header.h"
#include "layout/manifest.h"
#include "layout/tensor_table.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/unit/layout_testing.h"

namespace unreft::durable {

inline constexpr Version kVersion{Timeline{(uint64_t{3} << 32) | 77}, Step{1200}};
inline constexpr uint32_t kBlockBytes = 4096;
inline constexpr uint64_t kRows = 300;  // of the shared tensor, of each rank
inline constexpr uint64_t kColumns = 7;

// The memory of one node.
class SealedSlabs {
 public:
  explicit SealedSlabs(uint64_t place) : place_(place) {}

  SegmentStore& segments() { return segments_; }
  FakeHostMemory& memory() { return memory_; }

  std::string NameOf(Rank rank) const {
    return fmt::format("{}slot{}", SegmentPrefix("job", place_), rank);
  }

  // What element of the shared tensor has.
  static float ValueOf(uint64_t row, uint64_t column) {
    return static_cast<float>(row * kColumns + column);
  }

  // Seals the slab of that rank of `world`.
  void Seal(Rank rank, uint64_t world, const std::string& extras = "", Version version = kVersion) {
    const auto table = layout::TensorTable::Create(
        {Spec("model/w", {kRows * world, kColumns}, {kRows * rank.value, 0}, {kRows, kColumns}),
         Whole(fmt::format("rank{}/buffer/seen", rank), {}, 0, 1, Dtype::kInt64)});
    UNREFT_CHECK(table.ok());
    const auto plan = layout::CapturePlan::Make(*table, layout::CaptureMode::kSharded);
    layout::SlotManifest manifest;
    manifest.job = "job";
    manifest.version = version;
    manifest.rank = rank;
    manifest.world = world;
    manifest.layout_digest = plan.digest();
    manifest.block_bytes = kBlockBytes;
    manifest.data_bytes = plan.data_bytes();
    manifest.extras_bytes = extras.size();
    manifest.tensors = {table->specs().begin(), table->specs().end()};
    manifest.parts = {plan.parts().begin(), plan.parts().end()};
    const std::string described = layout::EncodeManifest(manifest);

    const SlotGeometry geometry =
        MakeSlotGeometry(SlotId{rank.value}, kBlockBytes, 4096, 4096, plan.data_bytes());
    auto segment = segments_.Create(NameOf(rank), SlotSegmentBytes(geometry));
    UNREFT_CHECK(segment.ok(), "{}", std::string(segment.status().message()));
    UNREFT_CHECK((*segment)->Reserve(0, SlotSegmentBytes(geometry)).ok());
    SlotView view = FormatSlot((*segment)->bytes(), geometry);
    for (const layout::CapturedPart& part : manifest.parts) FillPart(view, part, rank);
    std::memcpy(view.manifest().data(), described.data(), described.size());
    if (!extras.empty()) std::memcpy(view.extras().data(), extras.data(), extras.size());
    std::vector<uint32_t> crcs;
    for (uint64_t i = 0; i < BlockCount(plan.data_bytes(), kBlockBytes); ++i) {
      crcs.push_back(Crc32c(view.block(i)));
    }
    std::memcpy(view.crc_table().data(), crcs.data(), crcs.size() * sizeof(uint32_t));

    SlotGrant& grant = view.header().grant;
    grant.generation = 1;
    grant.rank = rank.value;
    grant.world = world;
    grant.timeline = version.timeline.value;
    SetBodyCrc(grant);
    SlotSeal& seal = view.header().seal;
    seal.generation = 1;
    seal.timeline = version.timeline.value;
    seal.step = version.step.value;
    seal.data_bytes = plan.data_bytes();
    seal.extras_bytes = extras.size();
    seal.manifest_bytes = described.size();
    seal.extras_crc = Crc32c(std::as_bytes(std::span(extras)));
    seal.manifest_crc = Crc32c(std::as_bytes(std::span(described)));
    seal.crc_table_crc = Crc32c(std::as_bytes(std::span(crcs)));
    SetBodyCrc(seal);
    view.set_state(Generation{1}, SlotState::kSealed);
    kept_[rank] = *std::move(segment);
  }

  // The daemon gives the slot to another version.
  void GiveUp(Rank rank) {
    SlotView view = *SlotView::Check(kept_.at(rank)->bytes());
    view.set_state(Generation{1}, SlotState::kEmpty);
    std::memset(view.data().data(), 0xee, view.data().size());
  }

  void FlipData(Rank rank, uint64_t offset) {
    SlotView view = *SlotView::Check(kept_.at(rank)->bytes());
    view.data()[offset] ^= std::byte{4};
  }

 private:
  static void FillPart(SlotView& view, const layout::CapturedPart& part, Rank rank) {
    std::byte* const at = view.data().data() + part.slab_offset;
    if (part.tensor == 1) {
      const int64_t seen = 100 + static_cast<int64_t>(rank.value);
      return static_cast<void>(std::memcpy(at, &seen, sizeof(seen)));
    }
    for (uint64_t i = 0; i < kRows * kColumns; ++i) {
      const float value = ValueOf(kRows * rank.value + i / kColumns, i % kColumns);
      std::memcpy(at + i * sizeof(value), &value, sizeof(value));
    }
  }

  const uint64_t place_;
  FakeHostMemory memory_;
  FakeSegmentStore segments_{memory_};
  std::map<Rank, std::unique_ptr<Segment>> kept_;
};

}  // namespace unreft::durable
