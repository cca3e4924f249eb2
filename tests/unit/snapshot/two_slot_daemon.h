// TwoSlotDaemon: the daemon's part of a capture between real threads: as soon as one slot is
// claimed it grants the other, and looks whether what is captured is of one step throughout.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/control_page.h"
#include "base/crc32c.h"
#include "base/slot_header.h"
#include "snapshot/capture.h"

namespace unreft::snapshot {

class TwoSlotDaemon final : public Capture::Events {
 public:
  static constexpr uint32_t kBlockBytes = 4096;

  TwoSlotDaemon(SegmentStore& segments, uint64_t slot_bytes) {
    control_segment_ = *segments.Create(kControl, kControlSegmentBytes);
    EXPECT_TRUE(control_segment_->Reserve(0, kControlSegmentBytes).ok());
    control_ = &FormatControlPage(control_segment_->bytes(), Rank{0});
    for (uint64_t slot = 0; slot < kSlots; ++slot) {
      const SlotGeometry geometry =
          MakeSlotGeometry(SlotId{slot}, kBlockBytes, 4096, 4096, slot_bytes);
      const uint64_t bytes = SlotSegmentBytes(geometry);
      segments_.push_back(*segments.Create(SlotName(slot), bytes));
      EXPECT_TRUE(segments_.back()->Reserve(0, bytes).ok());
      views_.push_back(FormatSlot(segments_.back()->bytes(), geometry));
    }
    Grant();
  }
  Registered Answer() const {
    Registered answer{.control_segment = kControl, .block_bytes = kBlockBytes};
    for (uint64_t slot = 0; slot < kSlots; ++slot) {
      const SlotGeometry& geometry = views_[slot].geometry();
      answer.slots.push_back({SlotId{slot}, SlotName(slot), geometry.extras_offset,
                              geometry.extras_capacity, geometry.data_offset,
                              geometry.data_capacity});
    }
    return answer;
  }

  void OnClaimed(const Claimed&, const RandomId&) override {
    // A snapshot is over before the next one is claimed; its end must be heard before, too.
    overtaken += claimed != captured + gave_up;
    ++claimed;
    Grant();
  }
  void OnProgress(const Progress&) override { ++progressed; }
  void OnCaptured(Captured message) override {
    // Every byte of a tensor is that of the step, or the fence let a change through.
    const auto value = static_cast<std::byte>(message.version.step.value);
    const std::span<const std::byte> data = views_[message.slot.value].data();
    for (const layout::ByteRange& range : tensors) {
      wrong += data[range.begin] != value || data[(range.begin + range.end) / 2] != value ||
               data[range.end - 1] != value;
    }
    if (expects_crcs) {
      const uint64_t blocks = (message.data_bytes + kBlockBytes - 1) / kBlockBytes;
      EXPECT_EQ(message.block_crcs.size(), blocks);
      for (uint64_t block = 0; block < message.block_crcs.size(); ++block) {
        const uint32_t here = Crc32c(views_[message.slot.value].block(block));
        if (message.block_crcs[block] != here) wrong_blocks.push_back(block);
      }
    } else {
      EXPECT_TRUE(message.block_crcs.empty());
    }
    ++captured;
  }
  void OnGaveUp(GaveUp message) override {
    ++gave_up;
    last_reason = message.reason;
  }
  void OnSkipped(Skipped) override { ++skipped; }

  // Where tensors lie in a slab, and whether their blocks come with CRCs; set before the first
  // snapshot.
  std::vector<layout::ByteRange> tensors;
  bool expects_crcs = false;
  // Read when no turn runs any more.
  int claimed = 0, progressed = 0, captured = 0, gave_up = 0, skipped = 0;
  int wrong = 0, overtaken = 0;
  std::string last_reason;
  std::vector<uint64_t> wrong_blocks;  // whose CRC is not that of the slot

 private:
  static constexpr char kControl[] = "/unreft.job.0.control";
  static constexpr uint64_t kSlots = 2;
  static std::string SlotName(uint64_t slot) { return "/unreft.job.0.slot" + std::to_string(slot); }

  void Grant() {
    const Generation generation{++generation_};
    const SlotId slot{generation_ % kSlots};
    views_[slot.value].set_state(generation, SlotState::kCapturing);
    control_->grant.store(GrantWord{GrantState::kGranted, slot, generation}.Encode());
  }

  std::unique_ptr<Segment> control_segment_;
  ControlPage* control_ = nullptr;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<SlotView> views_;
  uint64_t generation_ = 0;
};

}  // namespace unreft::snapshot
