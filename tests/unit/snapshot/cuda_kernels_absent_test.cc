// Checksums on the device where no nvcc was when this was built.

#include "tests/unit/snapshot/cuda_fixture.h"

namespace unreft::snapshot {
namespace {

class CudaChecksumAbsentTest : public CudaFixture {};

TEST_F(CudaChecksumAbsentTest, IsRefusedByName) {
  options_.checksum = true;
  const auto made = CudaCopier::Create(thread_.executor(), 0, options_);
  EXPECT_TRUE(absl::IsUnavailable(made.status()));
  EXPECT_EQ(std::string(made.status().message()),
            "device_checksum on CUDA device 0: this build of Unreft was made without nvcc");
}

TEST_F(CudaChecksumAbsentTest, WithoutItAllIsAsEver) {
  MakeCopier();
  std::byte* tensor = Tensor(5000, 4);
  HostPages target(5000);
  EXPECT_EQ(Copy(tensor, target.data(), 5000).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().first(5000), 4));
}

}  // namespace
}  // namespace unreft::snapshot
