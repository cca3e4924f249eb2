// SealedSlot: a slot of the store, mapped read-only, whose every byte is checked before it is used.
//
// What is read is only true if the generation is still the same afterwards: the last thing a reader
// does is StillThere. Thread-safe once it is opened and told what to read from.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/segment_store.h"
#include "base/session_frames.h"
#include "base/slot_header.h"

namespace unreft::snapshot {

class SealedSlot {
 public:
  // What of a block goes to host memory.
  struct Part {
    uint64_t offset = 0;
    std::byte* target = nullptr;
    uint64_t bytes = 0;
    bool wants_crc = false;
    uint32_t crc = 0;  // then the CRC32C of these bytes: an answer of Block
  };

  // Checks header, grant, seal and the CRC table. DataLoss names what does not verify; Aborted when
  // the slot holds another generation or is not sealed.
  static absl::StatusOr<SealedSlot> Open(SegmentStore& store, const WireSlot& where);

  const SlotSeal& seal() const { return seal_; }
  uint32_t block_bytes() const { return view_->geometry().block_bytes; }
  uint64_t blocks() const { return crc_table_.size(); }
  // Where its last block ends in the segment.
  uint64_t end() const { return view_->geometry().data_offset + blocks() * block_bytes(); }

  // The whole block, verified. DataLoss names segment, block, and the CRC needed and found.
  //
  // `parts` of it, in order and apart from each other, are copied in the same pass: they are in
  // place when it returns, and are what was verified only if it returns the block.
  absl::StatusOr<std::span<const std::byte>> Block(uint64_t index,
                                                   std::span<Part> parts = {}) const;

  // Verified.
  absl::StatusOr<std::vector<std::byte>> Extras() const;

  const std::shared_ptr<Segment>& mapping() const { return segment_; }
  // Reads from another mapping from now on. False, and nothing changes, unless that one shows the
  // same geometry, grant and seal, whose CRC table was verified: then it shows the same bytes.
  bool ReadFrom(std::shared_ptr<Segment> mapping);

  // Aborted when the slot was given to another generation meanwhile.
  absl::Status StillThere() const;

 private:
  SealedSlot() = default;
  absl::Status LoadSeal();
  absl::Status LoadCrcTable();

  WireSlot where_;
  std::shared_ptr<Segment> segment_;  // shared with who keeps mappings, see WarmSlots
  std::unique_ptr<SlotView> view_;
  SlotSeal seal_;
  std::vector<uint32_t> crc_table_;  // a private copy: what was verified stays so
};

}  // namespace unreft::snapshot
