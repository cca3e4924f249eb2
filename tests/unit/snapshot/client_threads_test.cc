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
#include "tests/unit/snapshot/two_slot_daemon.h"

namespace unreft::snapshot {
namespace {

constexpr uint64_t kElements = 200'000;

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
    layout_ = CaptureLayout::Make(
        *layout::TensorTable::Create(specs), data,
        {.block_bytes = TwoSlotDaemon::kBlockBytes, .bucket_bytes = options_.bucket_bytes});
    for (const layout::CapturedPart& part : layout_->plan().parts()) {
      daemon_.tensors.push_back({part.slab_offset, part.slab_offset + part.bytes});
    }
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
  TwoSlotDaemon daemon_{segments_, 3 * kElements * 4};
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
