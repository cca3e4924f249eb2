// The second net on a device: its tensors are looked at by a kernel before and behind the copies,
// no thread of the job waits for it, and who keeps the rules is never accused.

#include "snapshot/given_tensors.h"
#include "tests/unit/snapshot/cuda_capture_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CudaSecondNetTest : public CudaCaptureFixture {
 protected:
  static int Launches() { return fakecuda_calls("cudaLaunchKernelExC"); }
  static int Waits() {
    return fakecuda_calls("cudaStreamSynchronize") + fakecuda_calls("cudaDeviceSynchronize");
  }
  const BoundTensor& Named(const std::string& name) const {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const BoundTensor& tensor) { return tensor.spec.name == name; });
  }
  // In the order of the stream.
  void Write(const std::string& name, int value) {
    Set(stream_, Named(name).data, ShardBytes(Named(name).spec), value);
  }
  void AwaitStream() { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  void Fence() { ASSERT_EQ(capture_->Fence(stream_), absl::OkStatus()); }

  // A snapshot whose copies wait, all of them with the device.
  void Held(uint64_t step) {
    fakecuda_hold_copies();
    const int before = Enqueued();
    ASSERT_TRUE(Snapshot(step));
    ASSERT_TRUE(EventuallyEnqueued(before + CallsOfASnapshot()));
  }
};

// --- Written while it is copied ---

TEST_F(CudaSecondNetTest, AWriteBehindTheSnapshotWithoutAFenceGivesTheVersionUp) {
  Start(/*mixed=*/false);
  Step(1);
  Held(1);
  Write("w", 2);
  AwaitStream();  // for the first look alone, not for copies
  fakecuda_release_copies();
  Settle();
  EXPECT_EQ(daemon_->captured, 0);
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_EQ(daemon_->last_reason,
            "tensor 'w' changed while step 1 was being copied: written after snapshot() and before "
            "fence() (an in-place operation, an EMA or weight swap, an optimizer without the "
            "hook?); call fence() before that write, or declare the tensor volatile");
  EXPECT_EQ(board_.Read().last_problem, "step 1 given up: " + daemon_->last_reason);
  Fence();
  Step(2);
  ASSERT_TRUE(Snapshot(2));
  Settle();
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_EQ(daemon_->wrong, 0);
}

TEST_F(CudaSecondNetTest, AnOptimizersStepNamesTheFirstTensorsAndCountsTheOthers) {
  for (int i = 0; i < 200; ++i) AddOnDevice("t" + std::to_string(i), 65 + i);
  Start(/*mixed=*/true);
  Step(1);
  const int before = Launches();
  Held(1);
  for (const BoundTensor& tensor : tensors_) {
    if (tensor.on_device()) Set(stream_, tensor.data, ShardBytes(tensor.spec), 2);
  }
  AwaitStream();
  fakecuda_release_copies();
  Settle();
  EXPECT_THAT(daemon_->last_reason, AllOf(HasSubstr("tensors 't0', 't1', 't2' and 199 more"),
                                          HasSubstr("declare them volatile")));
  EXPECT_EQ(Launches() - before, 2) << "one before the copies, one behind them";
}

TEST_F(CudaSecondNetTest, TensorsInHostMemoryAreNamedBeside) {
  Start(/*mixed=*/true);
  Step(1);
  fakecuda_hold_copies();
  // The copier's thread has its hands full, so the host's copies wait as well.
  std::promise<void> go;
  thread_.executor().Post([released = go.get_future().share()] { released.wait(); });
  ASSERT_TRUE(Snapshot(1));
  Write("bias", 2);
  AwaitStream();
  std::memset(Named("offloaded").data, 2, kLarge);
  go.set_value();
  fakecuda_release_copies();
  Settle();
  EXPECT_THAT(daemon_->last_reason, HasSubstr("tensors 'offloaded', 'bias' changed while step 1"));
}

// --- Who keeps the rules ---

TEST_F(CudaSecondNetTest, WritesBehindTheFenceAreNoHarm) {
  Start(/*mixed=*/true);
  for (uint64_t step = 1; step <= 20; ++step) {
    Step(step);
    fakecuda_hold_copies();
    ASSERT_TRUE(Snapshot(step));
    if (step % 2 == 0) Write("running_mean", 77);  // volatile
    Fence();
    Step(step + 1);  // before any copy has ended
    fakecuda_release_copies();
    Settle();
    ASSERT_EQ(daemon_->captured, static_cast<int>(step)) << daemon_->last_reason;
    Fence();
  }
  EXPECT_EQ(daemon_->gave_up, 0);
  EXPECT_EQ(daemon_->wrong, 0);
  EXPECT_EQ(board_.Read().unsampled, "");
}

TEST_F(CudaSecondNetTest, StepsThatChangeNothingNeedNoFence) {
  Start(/*mixed=*/false);
  Step(0);
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(Snapshot(step));
    Settle();
  }
  EXPECT_EQ(daemon_->captured, 3);
}

// The stream has work that is not over, and so has the device: the host goes on all the same.
TEST_F(CudaSecondNetTest, TheHostWaitsForNothing) {
  Start(/*mixed=*/false);
  Gate kernel(stream_);
  Step(1);
  const int waits = Waits();
  ASSERT_TRUE(Snapshot(1));
  Fence();
  Step(2);
  EXPECT_EQ(Waits(), waits);
  EXPECT_TRUE(board_.Read().copying);
  kernel.Open();
  Settle();
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_EQ(daemon_->wrong, 0);
}

TEST_F(CudaSecondNetTest, WithoutProbesNobodyLooks) {
  options_capture_.probe_lines = 0;
  Start(/*mixed=*/false);
  Step(1);
  ASSERT_TRUE(Snapshot(1));
  Settle();
  EXPECT_EQ(Launches(), 0);
  EXPECT_EQ(daemon_->captured, 1);
}

// --- Without any fence ---

TEST_F(CudaSecondNetTest, WithoutAFenceSnapshotsStayOffUntilOneIsCalled) {
  Start(/*mixed=*/false);
  Step(1);
  ASSERT_TRUE(Snapshot(1));
  Settle();
  ASSERT_EQ(daemon_->captured, 1);
  Write("bias", 2);
  ASSERT_TRUE(Snapshot(2));  // what the device says comes later
  Settle();
  const std::string why =
      "tensor 'bias' changed since step 1 although nothing called fence(): snapshots stay off "
      "until fence() is called before the optimizer's step (ck.fence() in Python)";
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_EQ(daemon_->last_reason, why);
  const auto skipped = capture_->Snapshot(unreft::Step{3}, {}, stream_);
  ASSERT_TRUE(skipped.ok());
  EXPECT_EQ(skipped->outcome, Outcome::kSkipped);
  EXPECT_EQ(skipped->reason, why);
  Fence();
  Step(4);
  ASSERT_TRUE(Snapshot(4));
  Settle();
  EXPECT_EQ(daemon_->captured, 2);
  EXPECT_EQ(daemon_->wrong, 0);
}

TEST_F(CudaSecondNetTest, ATensorThatWasReplacedIsFollowedAndNotCompared) {
  Start(/*mixed=*/false);
  Step(1);
  ASSERT_TRUE(Snapshot(1));
  Settle();
  std::byte* const other = Tensor(kLarge, 9);
  const uint64_t index = 0;
  ASSERT_EQ(capture_->Rebind({&index, 1}, {&other, 1}), absl::OkStatus());
  ASSERT_TRUE(Snapshot(2));
  Settle();
  EXPECT_EQ(daemon_->captured, 2) << daemon_->last_reason;
  Fence();
  Held(3);
  Set(stream_, other, kLarge, 10);
  AwaitStream();
  fakecuda_release_copies();
  Settle();
  EXPECT_THAT(daemon_->last_reason, HasSubstr("tensor 'w' changed while step 3"));
}

// --- What goes wrong ---

TEST_F(CudaSecondNetTest, ALookThatCannotBeLaunchedGivesTheVersionUp) {
  Start(/*mixed=*/false);
  for (uint64_t nth = 1; nth <= 2; ++nth) {
    Step(nth);
    fakecuda_fail("cudaLaunchKernelExC", static_cast<int>(nth), cudaErrorInvalidValue);
    ASSERT_TRUE(Snapshot(nth));
    Settle();
    EXPECT_EQ(daemon_->gave_up, static_cast<int>(nth));
    EXPECT_THAT(daemon_->last_reason, HasSubstr("at launching kernel unreft_probe"));
    Fence();
  }
  Step(3);
  ASSERT_TRUE(Snapshot(3));
  Settle();
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_EQ(daemon_->wrong, 0);
}

// No look of ours has begun when the job's kernel goes wrong before it.
TEST_F(CudaSecondNetTest, AnErrorOfTheJobsKernelsIsCalledTheirsWhileALookWaits) {
  Start(/*mixed=*/false);
  Gate kernel(stream_);
  Step(1);
  ASSERT_TRUE(Snapshot(1));
  kernel.AwaitBegun();
  fakecuda_break(cudaErrorIllegalAddress);
  kernel.Open();
  Settle();
  EXPECT_EQ(daemon_->gave_up, 1);
  EXPECT_THAT(daemon_->last_reason, HasSubstr("of a kernel of the training job"));
  RunInTurn(thread_.executor(), [&] { capture_.reset(); });
  routing_.reset();
  fakecuda_restart(1);
}

TEST(OwnKernelsTest, CountsThoseThatHaveBegunAndMayHaveGoneWrong) {
  OwnKernels kernels;
  uint32_t first = 0, second = 0;
  kernels.Launched(&first);
  kernels.Launched(&second);
  EXPECT_EQ(kernels.count(), 0u);
  first = 1;
  EXPECT_EQ(kernels.count(), 1u);
  kernels.Ended(&second, /*well=*/false);  // never ran
  EXPECT_EQ(kernels.count(), 1u);
  kernels.Ended(&first, /*well=*/false);
  EXPECT_EQ(kernels.count(), 1u) << "it may be what went wrong, for ever";
  kernels.Launched();
  EXPECT_EQ(kernels.count(), 2u);
  kernels.Ended(nullptr, /*well=*/true);
  EXPECT_EQ(kernels.count(), 1u);
}

// --- Where it cannot be ---

class CudaUnsampledTest : public CudaSecondNetTest {
 protected:
  // Training goes on as ever, and it is said.
  void ExpectUnsampled(const std::string& why) {
    Start(/*mixed=*/false);
    EXPECT_THAT(board_.Read().unsampled,
                AllOf(HasSubstr("nothing but fence() keeps the versions of tensors on a device "
                                "whole, since no samples of them are compared: CUDA device 0: "),
                      HasSubstr(why)));
    Step(1);
    ASSERT_TRUE(Snapshot(1));
    Fence();
    Step(2);
    Settle();
    EXPECT_EQ(daemon_->captured, 1);
    EXPECT_EQ(daemon_->wrong, 0);
  }
};

TEST_F(CudaUnsampledTest, AKernelThatTheDeviceDoesNotTake) {
  fakecuda_fail("cudaLaunchKernelExC", 1, cudaErrorNoKernelImageForDevice);
  ExpectUnsampled("CUDA error 209");
  EXPECT_EQ(fakecuda_libraries(), 0);
}

TEST_F(CudaUnsampledTest, AKernelThatComputesSomethingElse) {
  fakecuda_break_kernels(0x100);
  ExpectUnsampled("of 1 bytes kernel unreft_probe computes");
}

TEST_F(CudaUnsampledTest, MemoryThatIsRefused) {
  fakecuda_fail("cudaHostAlloc", 3, cudaErrorMemoryAllocation);  // after buffers and trial
  ExpectUnsampled("allocating 108 bytes of pinned memory for 2 tensors");
}

TEST_F(CudaUnsampledTest, ItIsTriedAgainAtTheNextRegistration) {
  fakecuda_fail("cudaLibraryLoadData", 1, cudaErrorInvalidKernelImage);
  ExpectUnsampled("loading kernel unreft_probe");
  std::vector<ShardMemory> memory;
  for (const BoundTensor& tensor : tensors_) memory.push_back({tensor.data, tensor.on_device()});
  RunInTurn(thread_.executor(), [&] {
    capture_->Bind(*layout::TensorTable::Create(SpecsOf(tensors_)), memory,
                   EachByItself(memory.size()));
  });
  EXPECT_EQ(board_.Read().unsampled, "");
}

}  // namespace
}  // namespace unreft::snapshot
