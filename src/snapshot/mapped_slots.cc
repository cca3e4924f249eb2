#include "snapshot/mapped_slots.h"

#include <utility>

namespace unreft::snapshot {

absl::StatusOr<MappedSlot> MappedSlot::Open(SegmentStore& store, const WireSlotRegion& region) {
  MappedSlot slot;
  slot.region_ = region;
  absl::StatusOr<std::unique_ptr<Segment>> header =
      store.Open(region.segment, Access::kReadOnly, 0, kSegmentPage);
  if (!header.ok()) return header.status();
  slot.header_ = *std::move(header);
  if (absl::Status status = slot.CheckHeader(); !status.ok()) return status;
  slot.incarnation_ = slot.header().geometry.incarnation;
  absl::StatusOr<std::unique_ptr<Segment>> body =
      store.Open(region.segment, Access::kReadWrite, region.extras_offset);
  if (!body.ok()) return body.status();
  slot.body_ = *std::move(body);
  // The header's CRC vouches for the numbers, so the sum does not overflow.
  const uint64_t needed = region.data_offset + region.data_capacity - region.extras_offset;
  if (slot.body_->bytes().size() < needed) {
    return absl::DataLossError(fmt::format("segment {}: its regions need {} bytes, found {}",
                                           region.segment, needed, slot.body_->bytes().size()));
  }
  return slot;
}

absl::Status MappedSlot::CheckHeader() const {
  const SlotGeometry& geometry = header().geometry;
  if (geometry.magic != kSlotMagic || !BodyCrcIsRight(geometry)) {
    return absl::DataLossError(
        fmt::format("segment {}: its header does not verify; start unreftd again, which puts it "
                    "aside and makes another",
                    region_.segment));
  }
  if (geometry.min_reader > kSlotFormat) {
    return absl::FailedPreconditionError(
        fmt::format("segment {}: its format {} needs a reader of {} or up, libunreft knows {}; use "
                    "unreftd and libunreft of the same release",
                    region_.segment, geometry.format, geometry.min_reader, kSlotFormat));
  }
  const bool same = geometry.slot_id == region_.slot.value &&
                    geometry.extras_offset == region_.extras_offset &&
                    geometry.extras_capacity == region_.extras_capacity &&
                    geometry.data_offset == region_.data_offset &&
                    geometry.data_capacity == region_.data_capacity;
  if (same) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("segment {}: unreftd told of slot {} with {} + {} bytes, its header tells of "
                  "slot {} with {} + {}; start unreftd again",
                  region_.segment, region_.slot, region_.extras_capacity, region_.data_capacity,
                  geometry.slot_id, geometry.extras_capacity, geometry.data_capacity));
}

absl::StatusOr<std::shared_ptr<const MappedSlots>> MappedSlots::Open(SegmentStore& store, Rank rank,
                                                                     const Registered& registered) {
  auto slots = std::make_shared<MappedSlots>();
  absl::StatusOr<std::unique_ptr<Segment>> control =
      store.Open(registered.control_segment, Access::kReadWrite);
  if (!control.ok()) return control.status();
  slots->control_ = *std::move(control);
  absl::StatusOr<ControlPage*> page = CheckControlPage(slots->control_->bytes(), rank);
  if (!page.ok()) return page.status();
  slots->control_page_ = *page;
  for (const WireSlotRegion& region : registered.slots) {
    absl::StatusOr<MappedSlot> slot = MappedSlot::Open(store, region);
    if (!slot.ok()) return slot.status();
    if (!slots->slots_.empty() && slot->incarnation() != slots->incarnation()) {
      return absl::DataLossError(fmt::format(
          "segment {}: it was made by another unreftd than the slots before it; start unreftd "
          "again",
          region.segment));
    }
    slots->slots_.emplace(region.slot, *std::move(slot));
  }
  return slots;
}

const MappedSlot* MappedSlots::Find(SlotId slot) const {
  auto it = slots_.find(slot);
  return it == slots_.end() ? nullptr : &it->second;
}

RandomId MappedSlots::incarnation() const {
  return slots_.empty() ? RandomId{} : slots_.begin()->second.incarnation();
}

bool MappedSlots::Continues(const MappedSlots& earlier, SlotId slot, Generation generation) const {
  const MappedSlot* now = Find(slot);
  const MappedSlot* before = earlier.Find(slot);
  return now != nullptr && before != nullptr && now->incarnation() == before->incarnation() &&
         now->state().generation == generation;
}

}  // namespace unreft::snapshot
