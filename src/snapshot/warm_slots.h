// WarmSlots: mappings of sealed slots that a restore reads, made ahead of it and let go after it.
//
//   Welcome ──▶ Expect, MapSome ... ──▶ decision ──▶ Open, Open ... ──▶ Clear
//
// Entering the small pages of a slot in the page table takes as long as copying them, and taking
// them out a third of that: neither is done while a trainer waits for its bytes. Nothing is trusted
// for having been mapped: Open checks the slot as it is now, under its name, and takes the earlier
// mapping only where that shows the same header.
//
// A mapping keeps the memory of a segment that is removed meanwhile: Clear comes before the daemon
// is asked for other slots. Open may run on any thread, the other methods on one thread at a time.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/segment_store.h"
#include "base/session_frames.h"
#include "snapshot/sealed_slot.h"

namespace unreft::snapshot {

class WarmSlots {
 public:
  explicit WarmSlots(SegmentStore& store) : store_(store) {}

  // What MapSome maps, in this order, instead of what was expected before.
  void Expect(std::vector<WireSlot> slots);
  // Maps and populates the next `bytes` of what is expected; whether there may be more. A slot that
  // is gone or reused is let go and passed over.
  bool MapSome(uint64_t bytes);

  // As SealedSlot::Open. The mapping stays after the slot is destroyed, until Clear.
  absl::StatusOr<SealedSlot> Open(const WireSlot& where);

  // Expects nothing, unmaps all; blocks for about 30 ms per GiB.
  void Clear();

  // Mapped ahead or by Open. For tests and measurements.
  size_t mapped() const;

 private:
  // The slot that is being mapped.
  struct Next {
    SealedSlot slot;
    uint64_t populated = 0;
  };
  bool OpenNext();
  void LetGo(const std::string& name);

  SegmentStore& store_;
  std::deque<WireSlot> expected_;
  std::optional<Next> next_;

  mutable std::mutex mutex_;  // covers all below
  std::map<std::string, std::shared_ptr<Segment>> mappings_;
  std::vector<std::shared_ptr<Segment>> outdated_;  // of names that stand for other memory by now
};

}  // namespace unreft::snapshot
