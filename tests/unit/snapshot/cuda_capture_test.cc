// Snapshots of tensors on a device, and beside them in host memory, between a training thread and
// the copier's threads: what a training loop does, on the fake runtime.

#include <tuple>

#include "snapshot/cuda_image.h"
#include "tests/unit/snapshot/cuda_capture_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class CudaCaptureTest : public CudaCaptureFixture {};

// Of host memory too, and with checksums on the device.
class CudaTrainingTest : public CudaCaptureTest,
                         public testing::WithParamInterface<std::tuple<bool, bool>> {};

// Sometimes the fence comes at once and the snapshot is given up, sometimes when all copies are
// enqueued and none is done, sometimes when all are done: never is a byte of another step captured.
TEST_P(CudaTrainingTest, TensorsMayChangeAfterEachFence) {
  options_.checksum = std::get<1>(GetParam()) && !ChecksumImage().empty();
  Start(/*mixed=*/std::get<0>(GetParam()));
  fakecuda_delay(50, 7);
  int held = 0;
  for (uint64_t step = 1; step <= 90; ++step) {
    Step(step);
    const bool hold = step % 3 == 0;
    if (hold) fakecuda_hold_copies();
    const int before = Enqueued();
    const bool started = Snapshot(step);
    if (started && step % 3 == 1) {
      ASSERT_TRUE(EventuallyIdle());
    }
    if (started && hold) {
      ASSERT_TRUE(EventuallyEnqueued(before + CallsOfASnapshot()));
      ++held;
    }
    ASSERT_EQ(capture_->Fence(stream_), absl::OkStatus());
    Step(step + 1);  // before any copy has ended, where they are held
    fakecuda_release_copies();
    if (step % 2 == 0) Settle();
  }
  Settle();
  EXPECT_EQ(daemon_->wrong, 0);
  EXPECT_THAT(daemon_->wrong_blocks, testing::IsEmpty());
  EXPECT_EQ(daemon_->overtaken, 0);
  EXPECT_EQ(daemon_->claimed, daemon_->captured + daemon_->gave_up);
  EXPECT_GT(held, 3);
  EXPECT_GT(daemon_->captured, held);
}

INSTANTIATE_TEST_SUITE_P(State, CudaTrainingTest,
                         testing::Combine(testing::Bool(), testing::Bool()), [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Mixed" : "OnDevice") +
                                  (std::get<1>(info.param) ? "Checksum" : "");
                         });

TEST_F(CudaCaptureTest, SlotsArePinnedFromTheirFirstClaimOn) {
  Start(/*mixed=*/false);
  for (uint64_t step = 1; step <= 4; ++step) {
    Step(step);
    ASSERT_TRUE(Snapshot(step));
    Settle();
    ASSERT_EQ(capture_->Fence(stream_), absl::OkStatus());
  }
  // Two slots, each as much as is captured.
  ASSERT_TRUE(Eventually([&] { return fakecuda_pinned_bytes() == 2 * layout_->padded_bytes(); }));
  EXPECT_EQ(daemon_->captured, 4);
  // Another layout generation maps them anew, and they are unpinned before they are unmapped.
  RunInTurn(thread_.executor(), [&] {
    capture_->Install(layout_, *MappedSlots::Open(segments_, Rank{0}, daemon_->Answer()));
  });
  EXPECT_TRUE(Eventually([&] { return fakecuda_pinned_bytes() == 0; }));
}

TEST_F(CudaCaptureTest, Rule9AFenceThatComesTooEarlyGivesTheSnapshotUp) {
  options_.enqueued_max = 1;
  options_capture_.fence_timeout = std::chrono::milliseconds(30);
  Start(/*mixed=*/false);
  Step(1);
  fakecuda_hold_copies();
  ASSERT_TRUE(Snapshot(1));
  EXPECT_EQ(capture_->Fence(stream_), absl::OkStatus());
  Step(2);
  fakecuda_release_copies();
  Settle();
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_EQ(daemon_->captured, 0);
  EXPECT_THAT(daemon_->last_reason, HasSubstr("the fence came"));
}

// The host runs ahead of the device, and there is more than can be enqueued at a time.
TEST_F(CudaCaptureTest, AFenceThatComesAtOnceGivesNothingUp) {
  options_.enqueued_max = 1;
  Start(/*mixed=*/false);
  fakecuda_delay(200, 3);
  for (uint64_t step = 1; step <= 10; ++step) {
    Step(step);
    ASSERT_TRUE(Snapshot(step));
    EXPECT_EQ(capture_->Fence(stream_), absl::OkStatus());
    Step(step + 1);
    Settle();
  }
  EXPECT_EQ(daemon_->captured, 10);
  EXPECT_EQ(daemon_->gave_up, 0);
  EXPECT_EQ(daemon_->wrong, 0);
}

TEST_F(CudaCaptureTest, Rule9MixedStateWaitsForTheHostsCopiesToo) {
  Start(/*mixed=*/true);
  ASSERT_EQ(capture_->Fence(stream_), absl::OkStatus());
  Step(1);
  fakecuda_hold_copies();
  const int before = Enqueued();
  ASSERT_TRUE(Snapshot(1));
  ASSERT_TRUE(EventuallyEnqueued(before + CallsOfASnapshot()));
  EXPECT_EQ(capture_->Fence(stream_), absl::OkStatus());
  Step(2);  // the host's tensors change here and now
  EXPECT_TRUE(board_.Read().copying);
  fakecuda_release_copies();
  Settle();
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_EQ(daemon_->wrong, 0);
}

TEST_F(CudaCaptureTest, Rule9StepCountsInHostMemoryHoldUpNoFence) {
  Start(/*mixed=*/false);
  AddTensor("step", 4, on_host_.data(), kHostMemory);
  std::vector<ShardMemory> memory;
  for (const BoundTensor& tensor : tensors_) memory.push_back({tensor.data, tensor.on_device()});
  const auto layout = CaptureLayout::Make(*layout::TensorTable::Create(SpecsOf(tensors_)), memory,
                                          {.block_bytes = TwoSlotDaemon::kBlockBytes});
  for (const Bucket& bucket : layout->buckets()) EXPECT_TRUE(bucket.pieces.empty());
  EXPECT_EQ(layout->volatile_pieces().size(), 2u);
}

TEST_F(CudaCaptureTest, Rule10ASnapshotWithinAGraphCaptureIsAnError) {
  Start(/*mixed=*/false);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  const auto result = capture_->Snapshot(unreft::Step{1}, {}, stream_);
  EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
  EXPECT_EQ(fakecuda_captured(stream_), 0);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  Settle();
  Step(2);
  ASSERT_TRUE(Snapshot(2));
  Settle();
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_EQ(daemon_->captured, 1);
}

TEST_F(CudaCaptureTest, Rule10AFenceWithinAGraphCaptureGivesTheSnapshotUp) {
  Start(/*mixed=*/false);
  Step(1);
  fakecuda_hold_copies();
  const int before = Enqueued();
  ASSERT_TRUE(Snapshot(1));
  ASSERT_TRUE(EventuallyEnqueued(before + CallsOfASnapshot()));
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_TRUE(absl::IsFailedPrecondition(capture_->Fence(stream_)));
  EXPECT_EQ(fakecuda_captured(stream_), 0);
  fakecuda_release_copies();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  Settle();
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_THAT(daemon_->last_reason, HasSubstr("a graph is being captured"));
}

TEST_F(CudaCaptureTest, AnErrorOfTheJobsKernelsAbandonsTheVersionAndIsCalledTheirs) {
  Start(/*mixed=*/false);
  Step(1);
  ASSERT_TRUE(Snapshot(1));
  Settle();
  ASSERT_EQ(daemon_->captured, 1);
  Gate kernel(stream_);
  Step(2);
  ASSERT_TRUE(Snapshot(2));
  kernel.AwaitBegun();
  fakecuda_break(cudaErrorIllegalAddress);
  kernel.Open();
  Settle();
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_THAT(daemon_->last_reason, HasSubstr("of a kernel of the training job"));
  const auto result = capture_->Snapshot(unreft::Step{3}, {}, stream_);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("of a kernel of the training job"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  RunInTurn(thread_.executor(), [&] { capture_.reset(); });
  routing_.reset();
  fakecuda_restart(1);
}

}  // namespace
}  // namespace unreft::snapshot
