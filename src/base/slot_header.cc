#include "base/slot_header.h"

#include <absl/strings/str_cat.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/bounds.h"
#include "base/crc32c.h"
#include "base/guard_header.h"
#include "base/node_header.h"

namespace unreft {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

template <typename Body>
uint32_t BodyCrc(const Body& body) {
  return Crc32c(std::as_bytes(std::span(&body, 1)).first(offsetof(Body, crc)));
}

bool RegionFits(uint64_t offset, uint64_t length, uint64_t total) {
  return offset >= kSegmentPage && offset % kSegmentPage == 0 && offset <= total &&
         length <= total - offset;
}

}  // namespace

std::string_view SlotStateName(SlotState state) {
  switch (state) {
    case SlotState::kEmpty:
      return "empty";
    case SlotState::kCapturing:
      return "capturing";
    case SlotState::kSealed:
      return "sealed";
    case SlotState::kAbandoned:
      return "abandoned";
  }
  return "unknown";
}

SlotGeometry MakeSlotGeometry(SlotId id, uint32_t block_bytes, uint64_t manifest_bytes,
                              uint64_t extras_bytes, uint64_t data_bytes) {
  SlotGeometry geometry;
  geometry.slot_id = id.value;
  geometry.block_bytes = block_bytes;
  geometry.data_capacity = RoundUp(data_bytes, block_bytes);
  geometry.manifest_offset = kSegmentPage;
  geometry.manifest_capacity = RoundUp(manifest_bytes, kSegmentPage);
  geometry.crc_offset = geometry.manifest_offset + geometry.manifest_capacity;
  geometry.crc_capacity =
      RoundUp(BlockCount(data_bytes, block_bytes) * sizeof(uint32_t), kSegmentPage);
  geometry.extras_offset = geometry.crc_offset + geometry.crc_capacity;
  geometry.extras_capacity = RoundUp(extras_bytes, kSegmentPage);
  geometry.data_offset = geometry.extras_offset + geometry.extras_capacity;
  return geometry;
}

uint64_t SlotSegmentBytes(const SlotGeometry& geometry) {
  return geometry.data_offset + geometry.data_capacity;
}

uint64_t BlockCount(uint64_t data_bytes, uint32_t block_bytes) {
  return data_bytes / block_bytes + (data_bytes % block_bytes != 0);
}

template <typename Body>
void SetBodyCrc(Body& body) {
  body.crc = BodyCrc(body);
}

template <typename Body>
bool BodyCrcIsRight(const Body& body) {
  return body.crc == BodyCrc(body);
}

template void SetBodyCrc(SlotGeometry&);
template void SetBodyCrc(SlotGrant&);
template void SetBodyCrc(SlotSeal&);
template void SetBodyCrc(NodeBody&);
template void SetBodyCrc(GuardGeometry&);
template void SetBodyCrc(GuardGrant&);
template void SetBodyCrc(GuardSeal&);
template bool BodyCrcIsRight(const SlotGeometry&);
template bool BodyCrcIsRight(const SlotGrant&);
template bool BodyCrcIsRight(const SlotSeal&);
template bool BodyCrcIsRight(const NodeBody&);
template bool BodyCrcIsRight(const GuardGeometry&);
template bool BodyCrcIsRight(const GuardGrant&);
template bool BodyCrcIsRight(const GuardSeal&);

absl::StatusOr<SlotView> SlotView::Check(std::span<std::byte> bytes) {
  if (bytes.size() < kSegmentPage) {
    return absl::DataLossError(
        fmt::format("slot segment: needed {} bytes, found {}", kSegmentPage, bytes.size()));
  }
  SlotView view(bytes);
  const SlotGeometry& geometry = view.geometry();
  if (geometry.magic != kSlotMagic) {
    return absl::DataLossError(fmt::format("slot header: needed magic {:016x}, found {:016x}",
                                           kSlotMagic, geometry.magic));
  }
  // Before the format, which a turned bit may name wrong: the geometry's CRC stays where it is.
  if (!BodyCrcIsRight(geometry))
    return absl::DataLossError("slot header: geometry has a wrong CRC");
  if (geometry.min_reader > kSlotFormat) {
    return absl::FailedPreconditionError(fmt::format(
        "slot header: written in format {} for readers of {} and up, this reader knows {}",
        geometry.format, geometry.min_reader, kSlotFormat));
  }
  if (!std::has_single_bit(geometry.block_bytes) ||
      geometry.data_capacity % geometry.block_bytes != 0) {
    return absl::DataLossError(fmt::format(
        "slot {}: needs data of whole blocks of a power of two, found {} bytes in blocks of {}",
        geometry.slot_id, geometry.data_capacity, geometry.block_bytes));
  }
  const uint64_t blocks = geometry.data_capacity / geometry.block_bytes;
  const bool fits =
      RegionFits(geometry.manifest_offset, geometry.manifest_capacity, bytes.size()) &&
      RegionFits(geometry.crc_offset, geometry.crc_capacity, bytes.size()) &&
      RegionFits(geometry.extras_offset, geometry.extras_capacity, bytes.size()) &&
      RegionFits(geometry.data_offset, geometry.data_capacity, bytes.size()) &&
      geometry.crc_capacity / sizeof(uint32_t) >= blocks;
  if (!fits) {
    return absl::DataLossError(fmt::format("slot {}: its regions need {} bytes, the segment has {}",
                                           geometry.slot_id, SlotSegmentBytes(geometry),
                                           bytes.size()));
  }
  return view;
}

absl::StatusOr<SlotGrant> SlotView::CheckedGrant() const {
  const SlotGrant grant = header_->grant;
  if (!BodyCrcIsRight(grant) || grant.generation != state().generation.value) {
    return absl::DataLossError(
        fmt::format("slot {}: its grant is corrupt or of generation {}, needed {}",
                    geometry().slot_id, grant.generation, state().generation.value));
  }
  if (grant.rank >= grant.world || grant.world > kRanksMax || grant.timeline > kTimelineMax) {
    return absl::DataLossError(fmt::format(
        "slot {}: its grant is of rank {} of {} and timeline {}, needed a rank below "
        "its world, up to {} ranks and timeline {}",
        geometry().slot_id, grant.rank, grant.world, grant.timeline, kRanksMax, kTimelineMax));
  }
  return grant;
}

absl::StatusOr<SlotSeal> SlotView::CheckedSeal() const {
  const SlotSeal seal = header_->seal;
  const SlotGeometry& g = geometry();
  if (!BodyCrcIsRight(seal) || seal.generation != state().generation.value) {
    return absl::DataLossError(
        fmt::format("slot {}: its seal is corrupt or of generation {}, needed {}", g.slot_id,
                    seal.generation, state().generation.value));
  }
  if (seal.data_bytes > g.data_capacity || seal.extras_bytes > g.extras_capacity ||
      seal.manifest_bytes > g.manifest_capacity) {
    return absl::DataLossError(
        fmt::format("slot {}: its seal claims more bytes than it has", g.slot_id));
  }
  return seal;
}

SlotView FormatSlot(std::span<std::byte> bytes, SlotGeometry geometry) {
  SetBodyCrc(geometry);
  std::memcpy(bytes.data(), &geometry, sizeof(geometry));
  SlotView view = *SlotView::Check(bytes);
  view.set_state(Generation{0}, SlotState::kEmpty);
  return view;
}

}  // namespace unreft
