// CRCs that the device computes: the kernel's plumbing, its order, and what happens where it is
// missing or wrong, on the fake runtime.

#include "snapshot/cuda_checksum.h"

#include <random>

#include "base/crc32c.h"
#include "tests/unit/snapshot/cuda_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class CudaChecksumTest : public CudaFixture {
 protected:
  CudaChecksumTest() {
    options_.checksum = true;
    options_.checksum_chunks = 256;
    options_.restore_checksum_chunks = 16;
    options_.buffers = 64;
  }
  // Bytes that are not all alike.
  std::byte* Filled(size_t bytes, uint32_t seed) {
    std::byte* tensor = Tensor(bytes, 0);
    std::minstd_rand random(seed);
    for (size_t i = 0; i < bytes; ++i) tensor[i] = static_cast<std::byte>(random() >> 8);
    return tensor;
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
};

TEST_F(CudaChecksumTest, CrcsOfPiecesOfOddSizesComeBesideTheirCopies) {
  MakeCopier();
  constexpr size_t kSizes[] = {1, 3, 4, 127, 128, 129, 4095, 32 << 10, (32 << 10) + 1, 100'003};
  size_t total = 0;
  for (size_t size : kSizes) total += size + 1;
  std::byte* tensor = Filled(total, 1);
  HostPages target(total);
  std::vector<uint32_t> crcs(std::size(kSizes));
  std::vector<CopyOp> ops;
  size_t at = 1;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    ops.push_back({tensor + at, target.data() + at, kSizes[i], true, &crcs[i]});
    at += kSizes[i] + 1;
  }
  ops[3].crc = nullptr;  // not asked for
  const int before = Enqueued();
  EXPECT_EQ(Copy(ops).get(), absl::OkStatus());
  EXPECT_EQ(Enqueued() - before, 1);  // they come with the batch
  for (size_t i = 0; i < crcs.size(); ++i) {
    EXPECT_EQ(crcs[i], i == 3 ? 0 : Crc32c({ops[i].source, ops[i].bytes})) << kSizes[i];
    EXPECT_EQ(std::memcmp(ops[i].source, ops[i].target, ops[i].bytes), 0);
  }
}

TEST_F(CudaChecksumTest, ThousandsOfSmallPiecesAreOneLaunch) {
  options_.checksum_chunks = 4096;
  MakeCopier();
  constexpr size_t kPieces = 3000;
  std::byte* tensor = Filled(kPieces * 64, 2);
  HostPages target(kPieces * 64);
  std::vector<uint32_t> crcs(kPieces);
  std::vector<CopyOp> ops;
  for (size_t i = 0; i < kPieces; ++i) {
    ops.push_back({tensor + i * 64, target.data() + i * 64, 40, true, &crcs[i]});
  }
  const int before = fakecuda_calls("cudaLaunchKernelExC");
  EXPECT_EQ(Copy(ops).get(), absl::OkStatus());
  EXPECT_EQ(fakecuda_calls("cudaLaunchKernelExC") - before, 1);
  for (size_t i = 0; i < kPieces; ++i) {
    ASSERT_EQ(crcs[i], Crc32c({tensor + i * 64, 40})) << i;
  }
}

TEST_F(CudaChecksumTest, TheyAreOfWhatTheStreamHeldAndTheFenceCoversThem) {
  MakeCopier();
  std::byte* tensor = Tensor(50'000, 1);
  HostPages target(50'000);
  uint32_t crc = 0;
  Gate kernel(stream_);
  Set(stream_, tensor, 50'000, 2);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  const int before = Enqueued();
  auto answer = Copy({{tensor, target.data(), 50'000, true, &crc}});
  ASSERT_TRUE(EventuallyEnqueued(before + 1));
  ASSERT_EQ(copier_->Fence(stream_), absl::OkStatus());
  Set(stream_, tensor, 50'000, 3);
  kernel.Open();
  EXPECT_EQ(answer.get(), absl::OkStatus());
  const std::vector<std::byte> twos(50'000, std::byte{2});
  EXPECT_EQ(crc, Crc32c(twos));
}

TEST_F(CudaChecksumTest, VolatileTensorsAreReadInTheirStaging) {
  MakeCopier();
  fakecuda_delay(100, 3);
  HostPages target(5000);
  ASSERT_EQ(copier_->Reserve(8192), absl::OkStatus());
  for (int step = 1; step <= 20; ++step) {
    std::byte* tensor = Tensor(5000, step);
    uint32_t crc = 0;
    ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
    const auto staged = copier_->CopyVolatile({{tensor, target.data(), 5000, true, &crc}}, stream_);
    ASSERT_TRUE(staged.ok()) << staged.status();
    Set(stream_, tensor, 5000, 99);  // before their CRC is asked for
    EXPECT_EQ(Copy(*staged).get(), absl::OkStatus());
    const std::vector<std::byte> values(5000, static_cast<std::byte>(step));
    EXPECT_EQ(crc, Crc32c(values)) << step;
  }
}

TEST_F(CudaChecksumTest, ABitThatFlipsOnTheWayIsNotInTheCrc) {
  MakeCopier();
  std::byte* tensor = Filled(9000, 3);
  HostPages target(9000);
  uint32_t crc = 0;
  fakecuda_flip_bit(tensor + 7001);
  EXPECT_EQ(Copy({{tensor, target.data(), 9000, true, &crc}}).get(), absl::OkStatus());
  EXPECT_EQ(crc, Crc32c({tensor, 9000}));
  EXPECT_NE(crc, Crc32c(target.bytes().first(9000)));
  EXPECT_EQ(target.data()[7001] ^ tensor[7001], std::byte{1});
}

TEST_F(CudaChecksumTest, NorIsOneThatFlipsOnTheWayFromTheStaging) {
  MakeCopier();
  std::byte* tensor = Filled(3000, 8);
  HostPages target(3000);
  uint32_t crc = 0;
  ASSERT_EQ(copier_->Reserve(4096), absl::OkStatus());
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  const auto staged = copier_->CopyVolatile({{tensor, target.data(), 3000, true, &crc}}, stream_);
  ASSERT_TRUE(staged.ok()) << staged.status();
  fakecuda_flip_bit(staged->at(0).source + 2999);
  EXPECT_EQ(Copy(*staged).get(), absl::OkStatus());
  EXPECT_EQ(crc, Crc32c({tensor, 3000}));
  EXPECT_NE(crc, Crc32c(target.bytes().first(3000)));
}

// The ring goes round, and buckets wait for room in it.
TEST_F(CudaChecksumTest, MoreThanThereIsRoomForAtATime) {
  options_.checksum_chunks = 7;
  options_.enqueued_max = 64;
  MakeCopier();
  fakecuda_delay(20, 5);
  constexpr size_t kBuckets = 200;
  std::byte* tensor = Filled(kBuckets * 100, 4);
  HostPages target(kBuckets * 100);
  std::vector<uint32_t> crcs(4 * kBuckets);
  std::vector<std::future<absl::Status>> answers;
  std::vector<CopyOp> all;
  for (size_t i = 0; i < kBuckets; ++i) {
    std::vector<CopyOp> ops;
    for (size_t piece = 0; piece < 1 + i % 4; ++piece) {
      const size_t at = i * 100 + piece * 20;
      ops.push_back({tensor + at, target.data() + at, 10 + i % 9, true, &crcs[4 * i + piece]});
    }
    all.insert(all.end(), ops.begin(), ops.end());
    answers.push_back(Copy(ops));
  }
  for (auto& answer : answers) ASSERT_EQ(answer.get(), absl::OkStatus());
  for (const CopyOp& op : all) ASSERT_EQ(*op.crc, Crc32c({op.source, op.bytes}));
}

TEST_F(CudaChecksumTest, MoreThanTheRingHoldsFailsAndSaysSo) {
  options_.checksum_chunks = 2;
  MakeCopier();
  std::byte* tensor = Tensor(30, 4);
  HostPages target(30);
  uint32_t crcs[3] = {};
  std::vector<CopyOp> ops;
  for (size_t i = 0; i < 3; ++i) ops.push_back({tensor + i, target.data() + i, 1, true, &crcs[i]});
  EXPECT_THAT(Text(Copy(ops).get()),
              HasSubstr("checksums of 3 pieces at a time: found room for 2"));
  ops.pop_back();
  EXPECT_EQ(Copy(ops).get(), absl::OkStatus());
}

TEST_F(CudaChecksumTest, NothingHasACrcToo) {
  MakeCopier();
  std::byte* tensor = Tensor(4, 4);
  HostPages target(4);
  uint32_t crcs[2] = {77, 77};
  EXPECT_EQ(
      Copy({{tensor, target.data(), 0, true, &crcs[0]}, {tensor, target.data(), 4, true, &crcs[1]}})
          .get(),
      absl::OkStatus());
  EXPECT_EQ(crcs[0], 0u);
  EXPECT_EQ(crcs[1], Crc32c({tensor, 4}));
}

// --- Where it cannot be ---

TEST_F(CudaChecksumTest, WithTheOptionOffNothingOfItHappens) {
  options_.checksum = false;
  MakeCopier();
  std::byte* tensor = Tensor(5000, 4);
  HostPages target(5000);
  EXPECT_EQ(Copy(tensor, target.data(), 5000).get(), absl::OkStatus());
  ASSERT_EQ(copier_->BeginRestore(), absl::OkStatus());
  const CopyOp op{target.data(), tensor, 5000, true};
  EXPECT_EQ(copier_->Restore({&op, 1}), absl::OkStatus());
  EXPECT_EQ(copier_->EndRestore(), absl::OkStatus());
  for (const char* call : {"cudaLibraryLoadData", "cudaLibraryGetKernel", "cudaLaunchKernelExC"}) {
    EXPECT_EQ(fakecuda_calls(call), 0) << call;
  }
  EXPECT_EQ(fakecuda_calls("cudaHostAlloc"), 1);  // the buffers
  EXPECT_EQ(copier_->Describe(), "CUDA device 0, 0 of 0 bytes pinned");
}

TEST_F(CudaChecksumTest, WhatWasLoadedIsUnloaded) {
  MakeCopier();
  EXPECT_THAT(copier_->Describe(), HasSubstr("checksums on the device"));
  EXPECT_EQ(fakecuda_libraries(), 1);
  copier_.reset();
  EXPECT_EQ(fakecuda_libraries(), 0);
}

TEST_F(CudaChecksumTest, AKernelThatTheDeviceDoesNotTakeIsRefusedByName) {
  fakecuda_fail("cudaLaunchKernelExC", 1, cudaErrorNoKernelImageForDevice);
  const auto made = CudaCopier::Create(thread_.executor(), 0, options_);
  EXPECT_THAT(Text(made.status()), HasSubstr("device_checksum on CUDA device 0: CUDA error 209"));
  EXPECT_EQ(fakecuda_libraries(), 0);
}

TEST_F(CudaChecksumTest, AKernelThatComputesSomethingElseIsRefusedByName) {
  fakecuda_break_kernels(0x100);
  const auto made = CudaCopier::Create(thread_.executor(), 0, options_);
  EXPECT_TRUE(absl::IsInternal(made.status()));
  EXPECT_THAT(Text(made.status()),
              testing::AllOf(HasSubstr("device_checksum on CUDA device 0: of 98381 bytes"),
                             HasSubstr("its kernel computes"), HasSubstr("needed")));
}

// --- Whose error it is ---

TEST_F(CudaChecksumTest, AnErrorOfAKernelIsTheJobsWhileNoChecksumIsUnderWay) {
  MakeCopier();
  std::byte* tensor = Tensor(4000, 1);
  HostPages target(4000);
  uint32_t crc = 0;
  EXPECT_EQ(Copy({{tensor, target.data(), 4000, true, &crc}}).get(), absl::OkStatus());
  Gate kernel(stream_);
  kernel.AwaitBegun();
  fakecuda_break(cudaErrorIllegalAddress);
  kernel.Open();
  EXPECT_THAT(Text(copier_->Begin(stream_)), HasSubstr("of a kernel of the training job"));
  copier_.reset();
  fakecuda_restart(1);
}

TEST_F(CudaChecksumTest, AnErrorOfAKernelMayBeOursWhileAChecksumIsUnderWay) {
  MakeCopier();
  std::byte* tensor = Tensor(4000, 1);
  HostPages target(4000);
  uint32_t crc = 0;
  Gate kernel(stream_);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  const int before = Enqueued();
  auto answer = Copy({{tensor, target.data(), 4000, true, &crc}});
  ASSERT_TRUE(EventuallyEnqueued(before + 1));
  kernel.AwaitBegun();
  fakecuda_break(cudaErrorIllegalAddress);
  kernel.Open();
  const std::string ours = "of the training job or one of 1 of Unreft's";
  EXPECT_THAT(Text(answer.get()), HasSubstr(ours));
  EXPECT_THAT(Text(copier_->Begin(stream_)), HasSubstr(ours));
  copier_.reset();
  fakecuda_restart(1);
}

// --- Restore ---

class CudaRestoredTest : public CudaChecksumTest {
 protected:
  static constexpr size_t kBytes = 200'001;

  absl::Status Restore(const HostPages& source, std::byte* tensor) {
    const BoundTensor bound{.spec = {.name = "w",
                                     .dtype = Dtype::kUint8,
                                     .global_shape = {kBytes},
                                     .offset = {0},
                                     .extent = {kBytes}},
                            .data = tensor,
                            .cuda_device = 0};
    EXPECT_EQ(copier_->Accept({&bound, 1}), absl::OkStatus());
    EXPECT_EQ(copier_->BeginRestore(), absl::OkStatus());
    for (size_t at = 0; at < kBytes; at += 10'000) {
      const CopyOp op{source.data() + at, tensor + at, std::min<size_t>(10'000, kBytes - at), true};
      EXPECT_EQ(copier_->Restore({&op, 1}), absl::OkStatus());
    }
    return copier_->EndRestore();
  }
  static HostPages& Random(HostPages& pages) {
    std::minstd_rand random(11);
    for (std::byte& byte : pages.bytes()) byte = static_cast<std::byte>(random() >> 8);
    return pages;
  }
};

TEST_F(CudaRestoredTest, WhatIsOnTheDeviceIsReadAgain) {
  MakeCopier();
  HostPages source(kBytes);
  std::byte* tensor = Tensor(kBytes, 0);
  const int before = fakecuda_calls("cudaLaunchKernelExC");
  EXPECT_EQ(Restore(Random(source), tensor), absl::OkStatus());
  EXPECT_GT(fakecuda_calls("cudaLaunchKernelExC") - before, 1);  // 16 pieces a time
  EXPECT_EQ(std::memcmp(tensor, source.data(), kBytes), 0);
}

TEST_F(CudaRestoredTest, ABitThatFlipsOnTheWayNamesTheTensor) {
  MakeCopier();
  HostPages source(kBytes);
  std::byte* tensor = Tensor(kBytes, 0);
  fakecuda_flip_bit(tensor + 12'345);
  const absl::Status status = Restore(Random(source), tensor);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  const uint32_t found = Crc32c({tensor + 10'000, 4096});
  const uint32_t needed = Crc32c({source.data() + 10'000, 4096});
  EXPECT_THAT(Text(status), HasSubstr("tensor w: bytes 10000 to 14096 have CRC"));
  EXPECT_THAT(Text(status), HasSubstr(fmt::format("{:08x} on CUDA device 0", found)));
  EXPECT_THAT(Text(status), HasSubstr(fmt::format("needed {:08x}", needed)));
  // The next restore is none the worse for it.
  EXPECT_EQ(Restore(source, tensor), absl::OkStatus());
}

}  // namespace
}  // namespace unreft::snapshot
