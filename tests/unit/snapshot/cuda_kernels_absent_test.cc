// Kernels of Unreft's own where no nvcc was when this was built.

#include "tests/unit/snapshot/cuda_capture_fixture.h"

namespace unreft::snapshot {
namespace {

class CudaKernelsAbsentTest : public CudaCaptureFixture {};

TEST_F(CudaKernelsAbsentTest, ChecksumsAreRefusedByName) {
  options_.checksum = true;
  const auto made = CudaCopier::Create(thread_.executor(), 0, options_);
  EXPECT_TRUE(absl::IsUnavailable(made.status()));
  EXPECT_EQ(std::string(made.status().message()),
            "device_checksum on CUDA device 0: this build of Unreft was made without nvcc");
}

TEST_F(CudaKernelsAbsentTest, WithoutThemAllIsAsEver) {
  MakeCopier();
  std::byte* tensor = Tensor(5000, 4);
  HostPages target(5000);
  EXPECT_EQ(Copy(tensor, target.data(), 5000).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().first(5000), 4));
}

TEST_F(CudaKernelsAbsentTest, TensorsAreNotLookedAtAndThatIsSaid) {
  Start(/*mixed=*/true);
  EXPECT_EQ(board_.Read().unsampled,
            "nothing but fence() keeps the versions of tensors on a device whole, since no samples "
            "of them are compared: CUDA device 0: this build of Unreft was made without nvcc");
  Step(1);
  ASSERT_TRUE(Snapshot(1));
  ASSERT_EQ(capture_->Fence(stream_), absl::OkStatus());
  Step(2);
  Settle();
  EXPECT_EQ(daemon_->captured, 1);
  EXPECT_EQ(daemon_->wrong, 0);
  EXPECT_EQ(fakecuda_calls("cudaLaunchKernelExC"), 0);
}

}  // namespace
}  // namespace unreft::snapshot
