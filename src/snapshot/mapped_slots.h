// MappedSlots: what the daemon registered for this rank, mapped into this process.
//
//   control page      read-write
//   slot: header      read-only   [0, 4096)
//   slot: the rest    read-write  [extras_offset, end): what a trainer may write
//
// Checked once, when it is made: every header names the regions that the daemon told of. Immutable;
// the bytes behind it are shared memory. Thread-safe as such.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>

#include "base/control_page.h"
#include "base/segment_store.h"
#include "base/session_frames.h"
#include "base/slot_header.h"

namespace unreft::snapshot {

class MappedSlot {
 public:
  static absl::StatusOr<MappedSlot> Open(SegmentStore& store, const WireSlotRegion& region);

  SlotId id() const { return region_.slot; }
  // Of the memory that is mapped, whatever lies under the name by now.
  const RandomId& incarnation() const { return incarnation_; }
  SlotStateWord state() const {
    return SlotStateWord::Decode(header().state.load(std::memory_order_acquire));
  }
  std::span<std::byte> extras() const {
    return Region(region_.extras_offset, region_.extras_capacity);
  }
  std::span<std::byte> data() const { return Region(region_.data_offset, region_.data_capacity); }

 private:
  MappedSlot() = default;
  const SlotHeader& header() const {
    return *reinterpret_cast<const SlotHeader*>(header_->bytes().data());
  }
  std::span<std::byte> Region(uint64_t offset, uint64_t length) const {
    return body_->bytes().subspan(offset - region_.extras_offset, length);
  }
  absl::Status CheckHeader() const;

  WireSlotRegion region_;
  RandomId incarnation_{};  // as the header said when it was checked: it may rot later
  std::unique_ptr<Segment> header_;
  std::unique_ptr<Segment> body_;
};

class MappedSlots {
 public:
  // Errors name the segment: NotFound, DataLoss for a header that does not match.
  static absl::StatusOr<std::shared_ptr<const MappedSlots>> Open(SegmentStore& store, Rank rank,
                                                                 const Registered& registered);

  ControlPage& control() const { return *control_page_; }
  const MappedSlot* Find(SlotId slot) const;
  // Of the daemon's memory, which all of them belong to; null id if there are none.
  RandomId incarnation() const;

  // Whether the generation of the slot that was mapped in `earlier` lies in this mapping too.
  bool Continues(const MappedSlots& earlier, SlotId slot, Generation generation) const;

 private:
  std::unique_ptr<Segment> control_;
  ControlPage* control_page_ = nullptr;
  std::map<SlotId, MappedSlot> slots_;
};

}  // namespace unreft::snapshot
