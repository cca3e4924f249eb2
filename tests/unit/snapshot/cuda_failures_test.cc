// CudaCopier where something is missing or goes wrong: no driver, refused memory, errors of the
// job's kernels, a device reset, and every call failing once.

#include <tuple>

#include "base/crc32c.h"
#include "snapshot/cuda_image.h"
#include "snapshot/routing_copier.h"
#include "tests/unit/snapshot/cuda_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class CudaFailuresTest : public CudaFixture {
 protected:
  absl::Status CreateFails() {
    return CudaCopier::Create(thread_.executor(), 0, options_).status();
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }

  BoundTensor Bound(const std::string& name, std::byte* data, int device) {
    return {.spec = {.name = name,
                     .dtype = Dtype::kUint8,
                     .global_shape = {64},
                     .offset = {0},
                     .extent = {64}},
            .data = data,
            .cuda_device = device};
  }
};

// --- No CUDA ---

TEST_F(CudaFailuresTest, NoDriver) {
  fakecuda_set_driver(0);
  const absl::Status status = CreateFails();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(Text(status), "no CUDA: no NVIDIA driver");
  fakecuda_restart(1);
}

TEST_F(CudaFailuresTest, OldDriver) {
  fakecuda_set_driver(12040);
  const absl::Status status = CreateFails();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(Text(status), "no CUDA: the runtime needs a driver of CUDA 13.0, found one of 12.4");
  fakecuda_restart(1);
}

TEST_F(CudaFailuresTest, NoDevice) {
  fakecuda_restart(0);
  const absl::Status status = CreateFails();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(Text(status), "no CUDA: the driver shows no device to this process");
}

TEST_F(CudaFailuresTest, FewerDevicesThanThat) {
  EXPECT_EQ(Text(CudaCopier::Create(thread_.executor(), 2, options_).status()),
            "CUDA device 2: this process sees 2 devices");
}

TEST_F(CudaFailuresTest, WithoutADriverHostMemoryIsStillCopied) {
  fakecuda_set_driver(0);
  RoutingCopier copier(thread_.executor(), [&](Executor& executor, int device) {
    return CudaCopier::Create(executor, device, options_);
  });
  std::byte memory[64] = {};
  const std::vector<BoundTensor> on_host = {Bound("h", memory, kHostMemory)};
  EXPECT_EQ(copier.Accept(on_host), absl::OkStatus());
  EXPECT_EQ(fakecuda_calls("cudaGetDeviceCount"), 0);  // CUDA was not even asked
  const std::vector<BoundTensor> on_device = {on_host[0], Bound("w", memory, 0)};
  EXPECT_EQ(Text(copier.Accept(on_device)),
            "tensor w on CUDA device 0: no CUDA: no NVIDIA driver; only host memory is captured");
  EXPECT_EQ(copier.Describe(), "host memory");
  fakecuda_restart(1);
}

TEST_F(CudaFailuresTest, PinnedBuffersAreRefused) {
  fakecuda_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
  const absl::Status status = CreateFails();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(Text(status), HasSubstr("allocating 32768 bytes of pinned memory"));
}

TEST_F(CudaFailuresTest, StagingIsRefused) {
  MakeCopier();
  fakecuda_fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
  const absl::Status status = copier_->Reserve(1000);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(Text(status), HasSubstr("allocating 1000 bytes on the device"));
  EXPECT_EQ(copier_->Reserve(1000), absl::OkStatus());
}

// --- Tensors that are not where they are said to be ---

TEST_F(CudaFailuresTest, TensorsAreWhereTheyAreSaidToBe) {
  MakeCopier();
  std::byte* tensor = Tensor(64, 0);
  std::byte on_host[64];
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* elsewhere = nullptr;
  ASSERT_EQ(cudaMalloc(&elsewhere, 64), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const auto accept = [&](const BoundTensor& tensor) { return copier_->Accept({&tensor, 1}); };
  EXPECT_EQ(accept(Bound("w", tensor, 0)), absl::OkStatus());
  EXPECT_EQ(Text(accept(Bound("w", on_host, 0))),
            "tensor w: needed memory of CUDA device 0, found memory of the host");
  EXPECT_EQ(Text(accept(Bound("w", static_cast<std::byte*>(elsewhere), 0))),
            "tensor w: needed memory of CUDA device 0, found device 1");
  EXPECT_EQ(Text(accept(Bound("w", static_cast<std::byte*>(elsewhere), 1))),
            "tensor w: needed memory of CUDA device 0, found CUDA device 1; a client captures one "
            "device");
}

// --- Registration is refused ---

TEST_F(CudaFailuresTest, WhatMemlockRefusesGoesThroughBuffers) {
  MakeCopier();
  fakecuda_limit_pinned(16384);
  std::byte* tensor = Tensor(32768, 4);
  HostPages target(32768);
  auto keep = std::make_shared<int>();
  const auto pin = copier_->Pin(keep, target.bytes());
  ASSERT_TRUE(EventuallyPinned());
  EXPECT_EQ(Copy(tensor, target.data(), 32768).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes(), 4));
  EXPECT_THAT(copier_->Describe(), HasSubstr("16384 of 32768 bytes pinned; the rest goes through "
                                             "buffers: CUDA error 2 cudaErrorMemoryAllocation"));
  EXPECT_THAT(copier_->Describe(), HasSubstr("pinning 8192 bytes, memlock limit"));
}

TEST_F(CudaFailuresTest, WhatSomebodyElseRegisteredGoesThroughBuffers) {
  MakeCopier();
  std::byte* tensor = Tensor(32768, 4);
  HostPages target(32768);
  ASSERT_EQ(cudaHostRegister(target.data() + 8192, 4096, 0), cudaSuccess);
  auto keep = std::make_shared<int>();
  auto pin = copier_->Pin(keep, target.bytes());
  ASSERT_TRUE(EventuallyPinned());
  EXPECT_EQ(copier_->pins().progress().pinned, 32768u - 8192u);
  EXPECT_EQ(Copy(tensor, target.data(), 32768).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes(), 4));
  pin.reset();
  ASSERT_TRUE(EventuallyPinned());
  EXPECT_EQ(cudaHostUnregister(target.data() + 8192), cudaSuccess);  // still theirs
}

// --- The job's own kernels ---

TEST_F(CudaFailuresTest, AnErrorOfTheJobsKernelsIsCalledTheirs) {
  MakeCopier();
  std::byte* tensor = Tensor(8000, 1);
  HostPages target(8000);
  Gate kernel(stream_);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  auto first = Copy(tensor, target.data(), 4000);
  auto second = Copy(tensor + 4000, target.data() + 4000, 4000);
  ASSERT_TRUE(EventuallyEnqueued(2));
  kernel.AwaitBegun();
  fakecuda_break(cudaErrorIllegalAddress);
  kernel.Open();
  for (auto* answer : {&first, &second}) {
    const absl::Status status = answer->get();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("CUDA error 700 cudaErrorIllegalAddress"));
    EXPECT_THAT(Text(status), HasSubstr("of a kernel of the training job"));
  }
  // What comes later says so too, and the job reads its error itself.
  for (const absl::Status& status :
       {copier_->Begin(stream_), copier_->Fence(stream_), copier_->BeginRestore()}) {
    EXPECT_THAT(Text(status), HasSubstr("of a kernel of the training job"));
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  copier_.reset();
  fakecuda_restart(1);
}

// --- A device reset ---

TEST_F(CudaFailuresTest, AResetDeviceIsNotUsedAnyMore) {
  MakeCopier();
  std::byte* tensor = Tensor(4000, 1);
  HostPages target(8192);
  auto keep = std::make_shared<int>();
  auto pin = copier_->Pin(keep, target.bytes());
  ASSERT_TRUE(EventuallyPinned());
  EXPECT_EQ(Copy(tensor, target.data(), 4000).get(), absl::OkStatus());
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  stream_ = nullptr;
  for (const absl::Status& status : {copier_->Begin(stream_), copier_->Fence(stream_),
                                     copier_->BeginRestore(), copier_->Reserve(100)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("CUDA device 0 was reset"));
  }
  EXPECT_THAT(Text(Copy(tensor, target.data(), 4000).get()), HasSubstr("was reset"));
  pin.reset();
  copier_.reset();  // TearDown: no handle of before was named
  EXPECT_EQ(fakecuda_pinned_bytes(), 0u);
}

TEST_F(CudaFailuresTest, AfterAResetTheNextRegistrationMakesACopierAnew) {
  RoutingCopier copier(thread_.executor(), [&](Executor& executor, int device) {
    return CudaCopier::Create(executor, device, options_);
  });
  std::vector<BoundTensor> tensors = {Bound("w", Tensor(64, 1), 0)};
  ASSERT_EQ(copier.Accept(tensors), absl::OkStatus());
  ASSERT_EQ(copier.Begin(stream_), absl::OkStatus());
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_TRUE(absl::IsFailedPrecondition(copier.Begin(nullptr)));
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamDefault), cudaSuccess);
  tensors[0].data = Tensor(64, 2);
  ASSERT_EQ(copier.Accept(tensors), absl::OkStatus());
  EXPECT_EQ(copier.Begin(stream_), absl::OkStatus());
}

// --- Every call, once ---

constexpr const char* kFunctions[] = {
    "cudaDeviceSynchronize", "cudaEventCreateWithFlags",  "cudaEventDestroy",
    "cudaEventRecord",       "cudaEventSynchronize",      "cudaFree",
    "cudaFreeHost",          "cudaGetDeviceCount",        "cudaHostAlloc",
    "cudaHostRegister",      "cudaHostUnregister",        "cudaMalloc",
    "cudaMemcpyAsync",       "cudaMemcpyBatchAsync",      "cudaPointerGetAttributes",
    "cudaSetDevice",         "cudaStreamCreateWithFlags", "cudaStreamDestroy",
    "cudaStreamIsCapturing", "cudaStreamWaitEvent",       "cudaStreamSynchronize",
    "cudaLibraryLoadData",   "cudaLibraryGetKernel",      "cudaLibraryUnload",
    "cudaLaunchKernelExC",
};

// With and without checksums on the device.
class EveryCallTest : public CudaFailuresTest,
                      public testing::WithParamInterface<std::tuple<const char*, bool>> {
 protected:
  EveryCallTest() { options_.checksum = std::get<1>(GetParam()) && !ChecksumImage().empty(); }

  static constexpr size_t kBytes = 6000;

  // A snapshot, a fence and a restore. Whatever fails says so, is answered once, leaves no error to
  // the training thread, and what succeeds has the right bytes.
  void Run() {
    HostPages target(16384);
    auto keep = std::make_shared<int>();
    auto made = CudaCopier::Create(thread_.executor(), 0, options_);
    if (!made.ok()) return;
    copier_ = *std::move(made);
    std::shared_ptr<void> pin = copier_->Pin(keep, target.bytes().first(8192));
    ASSERT_TRUE(EventuallyPinned());
    const std::vector<BoundTensor> bound = {Bound("w", tensor_, 0)};
    const bool goes =
        copier_->Accept(bound).ok() && copier_->Reserve(256).ok() && copier_->Begin(stream_).ok();
    looks_ = goes && copier_->ReserveProbes(1).ok();
    if (goes) Snapshot(target);
    Restore(target);
    pin.reset();
    copier_.reset();
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    // What could not be unregistered may not be unmapped.
    const TestsOwn own;
    const bool left = cudaHostUnregister(target.data()) == cudaSuccess;
    if (!left) cudaGetLastError();
    EXPECT_EQ(keep.use_count(), left ? 2 : 1);
  }

  void Snapshot(HostPages& target) {
    uint32_t crcs[3] = {};
    uint32_t* const crc = options_.checksum ? crcs : nullptr;
    const auto staged =
        copier_->CopyVolatile({{volatile_, target.data() + 15'000, 100, true, crc}}, stream_);
    uint64_t before = 0, behind = 0;
    std::future<absl::Status> seen = Look(before, /*now=*/true);
    std::vector<std::future<absl::Status>> answers;
    answers.push_back(
        Copy({{tensor_, target.data(), 3000, true, crc != nullptr ? &crcs[1] : nullptr},
              {tensor_ + 3000, target.data() + 3000, 3000, true}}));
    answers.push_back(
        Copy({{tensor_, target.data() + 8192, kBytes, true, crc != nullptr ? &crcs[2] : nullptr}}));
    std::future<absl::Status> checked = Look(behind, /*now=*/false);
    RunInTurn(thread_.executor(), [] {});
    const bool fenced = copier_->Fence(stream_).ok();
    if (fenced) Set(stream_, tensor_, kBytes, 2);
    if (staged.ok()) {
      EXPECT_TRUE(!Copy(*staged).get().ok() || Is(target.bytes().subspan(15'000, 100), 7, crcs[0]));
    }
    EXPECT_TRUE(!answers[0].get().ok() || (IsAll(target.bytes().first(kBytes), 1) &&
                                           Is(target.bytes().first(3000), 1, crcs[1])));
    const bool looked = seen.get().ok();
    EXPECT_TRUE(!checked.get().ok() || !looked || before == behind);
    EXPECT_TRUE(!answers[1].get().ok() || Is(target.bytes().subspan(8192, kBytes), 1, crcs[2]));
    EXPECT_TRUE(!fenced || IsAll(Read(tensor_, kBytes), 2));
  }

  std::future<absl::Status> Look(uint64_t& digest, bool now) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    std::future<absl::Status> future = answer->get_future();
    auto done = [answer](absl::Status status) { answer->set_value(std::move(status)); };
    if (!looks_) {
      done(absl::UnavailableError("there is no room for it"));
    } else if (ProbeOp op{probes_, memory_, unreft::Step{1}, {&digest, 1}}; now) {
      copier_->ProbeNow(op, stream_, done);
    } else {
      RunInTurn(thread_.executor(), [&] { copier_->ProbeLater(op, done); });
    }
    return future;
  }

  void Restore(HostPages& target) {
    std::memset(target.data(), 9, target.size());
    if (!copier_->BeginRestore().ok()) return;
    const CopyOp op{target.data(), tensor_, kBytes, true};
    const absl::Status copied = copier_->Restore({&op, 1});
    const absl::Status ended = copier_->EndRestore();
    EXPECT_TRUE(!copied.ok() || !ended.ok() || IsAll({tensor_, tensor_ + kBytes}, 9));
  }

  // Where checksums are asked for, with the right one.
  bool Is(std::span<const std::byte> bytes, int value, uint32_t crc) const {
    return IsAll(bytes, value) && (!options_.checksum || crc == Crc32c(bytes));
  }

  std::byte* tensor_ = nullptr;
  bool looks_ = false;
  std::shared_ptr<const TensorProbes> probes_;
  MemoryPtr memory_;
  std::byte* volatile_ = nullptr;
};

TEST_P(EveryCallTest, MayFail) {
  const char* function = std::get<0>(GetParam());
  for (int nth = 1; nth <= 20; ++nth) {
    SCOPED_TRACE(nth);
    fakecuda_restart(1);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamDefault), cudaSuccess);
    tensor_ = Tensor(kBytes, 1);
    volatile_ = Tensor(100, 7);
    std::vector<BoundTensor> bound = {Bound("w", tensor_, 0)};
    bound[0].spec.global_shape = bound[0].spec.extent = {kBytes};
    memory_ = std::make_shared<std::vector<ShardMemory>>(1, ShardMemory{tensor_, true});
    probes_ =
        std::make_shared<TensorProbes>(*layout::TensorTable::Create(SpecsOf(bound)), *memory_, 2);
    fakecuda_fail(function, nth, cudaErrorInvalidValue);
    Run();
    fakecuda_fail(function, 0, cudaSuccess);
    EXPECT_STREQ(fakecuda_violations(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Once, EveryCallTest,
                         testing::Combine(testing::ValuesIn(kFunctions), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "Checksum" : "");
                         });

}  // namespace
}  // namespace unreft::snapshot
