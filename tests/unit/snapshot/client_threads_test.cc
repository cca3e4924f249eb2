// The capture machine between two real threads: a training thread that snapshots, fences and then
// changes the tensors, and the copier thread. For the thread sanitizer above all.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/asio_executor.h"
#include "layout/tensor_table.h"
#include "snapshot/capture.h"
#include "snapshot/host_copier.h"
#include "tests/fakes/fake_segment_store.h"
#include "tests/unit/snapshot/turns.h"

namespace unreft::snapshot {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr uint64_t kElements = 200'000;
constexpr char kControl[] = "/unreft.job.0.control";
constexpr uint64_t kSlots = 2;

std::string SlotName(uint64_t slot) { return "/unreft.job.0.slot" + std::to_string(slot); }

// The daemon's part: as soon as one slot is claimed it grants the other.
class TwoSlotDaemon final : public Capture::Events {
 public:
  explicit TwoSlotDaemon(SegmentStore& segments) {
    control_segment_ = *segments.Create(kControl, kControlSegmentBytes);
    EXPECT_TRUE(control_segment_->Reserve(0, kControlSegmentBytes).ok());
    control_ = &FormatControlPage(control_segment_->bytes(), Rank{0});
    for (uint64_t slot = 0; slot < kSlots; ++slot) {
      const SlotGeometry geometry =
          MakeSlotGeometry(SlotId{slot}, kBlockBytes, 4096, 4096, 3 * kElements * 4);
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

  void OnClaimed(const Claimed&) override {
    // A snapshot is over before the next one is claimed; its end must be heard before, too.
    overtaken += claimed != captured + gave_up;
    ++claimed;
    Grant();
  }
  void OnProgress(const Progress&) override { ++progressed; }
  void OnCaptured(Captured message) override {
    // Every byte of a tensor is that of the step, or the fence let a change through.
    for (uint64_t at : {uint64_t{0}, message.data_bytes / 2, message.data_bytes - 1}) {
      wrong += views_[message.slot.value].data()[at] !=
               static_cast<std::byte>(message.version.step.value);
    }
    ++captured;
  }
  void OnGaveUp(GaveUp) override { ++gave_up; }
  void OnSkipped(Skipped) override { ++skipped; }

  // Read when no turn runs any more.
  int claimed = 0, progressed = 0, captured = 0, gave_up = 0, skipped = 0;
  int wrong = 0, overtaken = 0;

 private:
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

class TwoThreads : public testing::TestWithParam<bool> {
 protected:
  TwoThreads() : memory_(kElements * 4) {
    options_.bucket_bytes = 64 * 1024;
    options_.progress_every_bytes = 128 * 1024;
    options_.fence_helps = GetParam();
    capture_ = std::make_unique<Capture>(thread_.executor(), copier_, options_, board_, daemon_);
    std::vector<TensorSpec> specs;
    std::vector<ShardMemory> data;
    for (const char* name : {"a", "b", "c"}) {
      specs.push_back({.name = name,
                       .global_shape = {kElements},
                       .offset = {0},
                       .extent = {kElements},
                       .replica_count = 1});
      data.push_back({memory_.data()});
    }
    specs[1].is_volatile = true;
    layout_ =
        CaptureLayout::Make(*layout::TensorTable::Create(specs), data,
                            {.block_bytes = kBlockBytes, .bucket_bytes = options_.bucket_bytes});
    InTurn([&] {
      capture_->SetTimeline(Timeline{1});
      capture_->Install(layout_, *MappedSlots::Open(segments_, Rank{0}, daemon_.Answer()));
    });
  }
  ~TwoThreads() override { thread_.Join(); }

  template <typename Body>
  void InTurn(Body body) {
    RunInTurn(thread_.executor(), std::move(body));
  }

  FakeHostMemory host_;
  FakeSegmentStore segments_{host_};
  TwoSlotDaemon daemon_{segments_};
  ExecutorThread thread_{"copier"};
  HostCopier copier_{thread_.executor()};
  StatusBoard board_;
  CaptureOptions options_;
  std::vector<std::byte> memory_;
  std::shared_ptr<const CaptureLayout> layout_;
  std::unique_ptr<Capture> capture_;
};

TEST_P(TwoThreads, TensorsMayChangeAfterEachFence) {
  constexpr uint64_t kSteps = 200;
  int started = 0;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    std::memset(memory_.data(), static_cast<int>(step), memory_.size());
    const auto result = capture_->Snapshot(Step{step}, {}, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    started += result->outcome == Outcome::kStarted;
    ASSERT_TRUE(capture_->Fence(nullptr).ok());
    // Now and then, so that the next slot is granted and the next snapshot is not.
    if (step % 3 != 0) InTurn([] {});
  }
  InTurn([] {});
  InTurn([] {});
  thread_.Join();
  EXPECT_EQ(daemon_.claimed, started);
  EXPECT_EQ(daemon_.captured, started);
  EXPECT_EQ(daemon_.gave_up, 0);
  EXPECT_EQ(daemon_.wrong, 0);
  EXPECT_EQ(daemon_.overtaken, 0);
  EXPECT_EQ(board_.Read().skipped + board_.Read().started, kSteps);
  EXPECT_GT(started, 10);
}

TEST_P(TwoThreads, AbandonedInTheMiddle) {
  for (uint64_t step = 1; step <= 100; ++step) {
    std::memset(memory_.data(), static_cast<int>(step), memory_.size());
    ASSERT_TRUE(capture_->Snapshot(Step{step}, {}, nullptr).ok());
    thread_.executor().Post(
        [&, step] { capture_->Abandon({Timeline{1}, Step{step}}, "for a test"); });
    ASSERT_TRUE(capture_->Fence(nullptr).ok());
  }
  InTurn([] {});
  InTurn([] {});
  thread_.Join();
  EXPECT_EQ(daemon_.captured + daemon_.gave_up, daemon_.claimed);
  EXPECT_EQ(daemon_.wrong, 0);
  EXPECT_EQ(daemon_.overtaken, 0);
}

INSTANTIATE_TEST_SUITE_P(Fence, TwoThreads, testing::Bool(),
                         [](const auto& info) { return info.param ? "Helps" : "Waits"; });

}  // namespace
}  // namespace unreft::snapshot
