// CudaCopier: the rules of capture on a device (docs/protocol.md, rules 9 to 12), on the fake
// runtime.

#include <sys/mman.h>

#include "tests/unit/snapshot/cuda_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

class CudaCopierTest : public CudaFixture {};

// --- Rule 10: streams ---

TEST_F(CudaCopierTest, Rule10CopiesComeAfterWhatTheTrainingStreamWasGiven) {
  MakeCopier();
  std::byte* tensor = Tensor(10'000, 1);
  HostPages target(10'000);
  Gate kernel(stream_);
  Set(stream_, tensor, 10'000, 2);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  auto answer = Copy(tensor, target.data(), 10'000);
  ASSERT_TRUE(Eventually([&] { return fakecuda_calls("cudaMemcpyBatchAsync") == 1; }));
  EXPECT_FALSE(IsReady(answer));
  kernel.Open();
  EXPECT_EQ(answer.get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().first(10'000), 2));
}

TEST_F(CudaCopierTest, Rule10AndAfterWhatTheDeclaredWritersWereGiven) {
  MakeCopier();
  cudaStream_t writer = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(copier_->SetWriters({writer}), absl::OkStatus());
  std::byte* tensor = Tensor(4096, 1);
  HostPages target(4096);
  Gate kernel(writer);
  Set(writer, tensor, 4096, 2);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  auto answer = Copy(tensor, target.data(), 4096);
  ASSERT_TRUE(EventuallyEnqueued(1));
  kernel.Open();
  EXPECT_EQ(answer.get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes(), 2));
}

TEST_F(CudaCopierTest, Rule10TheLegacyDefaultStreamIsAStreamToo) {
  MakeCopier();
  std::byte* tensor = Tensor(4096, 1);
  HostPages target(4096);
  ASSERT_EQ(copier_->Begin(nullptr), absl::OkStatus());
  auto answer = Copy(tensor, target.data(), 4096);
  EXPECT_EQ(copier_->Fence(nullptr), absl::OkStatus());
  const absl::Status status = answer.get();
  EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
}

TEST_F(CudaCopierTest, Rule10SideStreamsAreNonBlocking) {
  MakeCopier();
  EXPECT_EQ(fakecuda_non_blocking_streams(), 2);  // of captures, of restores
}

TEST_F(CudaCopierTest, Rule10NoStreamIsTouchedWhileAGraphIsCaptured) {
  MakeCopier();
  ASSERT_EQ(copier_->Reserve(4096), absl::OkStatus());
  std::byte* tensor = Tensor(64, 1);
  HostPages target(64);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  const std::vector<CopyOp> ops = {{tensor, target.data(), 64, true}};
  for (const absl::Status& status :
       {copier_->Begin(stream_), copier_->CopyVolatile(ops, stream_).status(),
        copier_->Fence(stream_)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a graph is being captured"));
  }
  EXPECT_EQ(fakecuda_captured(stream_), 0);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(copier_->Begin(stream_), absl::OkStatus());
}

TEST_F(CudaCopierTest, Rule10AWriterThatCapturesIsNotTouchedEither) {
  MakeCopier();
  cudaStream_t writer = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(copier_->SetWriters({writer}), absl::OkStatus());
  ASSERT_EQ(cudaStreamBeginCapture(writer, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_TRUE(absl::IsFailedPrecondition(copier_->Begin(stream_)));
  EXPECT_EQ(fakecuda_captured(writer), 0);
}

TEST_F(CudaCopierTest, Rule10OurThreadsDoNotBreakACapture) {
  std::byte* tensor = Tensor(20'000, 5);
  HostPages target(20'000);
  auto keep = std::make_shared<int>();
  MakeCopier();
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  // In the strictest mode most calls of any thread break it.
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  auto first = Copy(tensor, target.data(), 20'000);
  EXPECT_EQ(first.get(), absl::OkStatus());
  const auto pin = copier_->Pin(keep, target.bytes());
  EXPECT_TRUE(EventuallyPinned());
  RunInTurn(thread_.executor(), [&] {
    EXPECT_EQ(copier_->Reserve(1000), absl::OkStatus());
    EXPECT_EQ(copier_->BeginRestore(), absl::OkStatus());
  });
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(fakecuda_pinned_bytes(), target.size());
}

TEST_F(CudaCopierTest, Rule10AnErrorOfOursIsTakenFromTheTrainingThread) {
  MakeCopier();
  for (const char* function : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamIsCapturing"}) {
    fakecuda_fail(function, 1, cudaErrorInvalidValue);
    const absl::Status status = copier_->Begin(stream_);
    EXPECT_TRUE(absl::IsInternal(status)) << function << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cudaErrorInvalidValue"));
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
  EXPECT_EQ(copier_->Begin(stream_), absl::OkStatus());
}

TEST_F(CudaCopierTest, Rule10AnErrorOfTheJobIsLeftForTheJobToRead) {
  MakeCopier();
  int on_host = 0;
  ASSERT_EQ(cudaMemsetAsync(&on_host, 0, 4, stream_), cudaErrorInvalidValue);
  const absl::Status status = copier_->Begin(stream_);
  EXPECT_THAT(std::string(status.message()), HasSubstr("training job, which has not read it yet"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(copier_->Begin(stream_), absl::OkStatus());
}

TEST_F(CudaCopierTest, Rule10TheTrainingThreadKeepsItsDevice) {
  MakeCopier();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(copier_->Begin(stream_), absl::OkStatus());
  EXPECT_EQ(copier_->Fence(stream_), absl::OkStatus());
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

// --- Rule 9: the fence ---

TEST_F(CudaCopierTest, Rule9TheFenceHoldsUpTheStreamNotTheHost) {
  MakeCopier();
  std::byte* tensor = Tensor(12'000, 3);
  HostPages target(12'000);
  fakecuda_hold_copies();
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  std::vector<std::future<absl::Status>> answers;
  for (size_t at = 0; at < 12'000; at += 4000) {
    answers.push_back(Copy(tensor + at, target.data() + at, 4000));
  }
  ASSERT_TRUE(EventuallyEnqueued(3));
  EXPECT_EQ(copier_->Fence(stream_), absl::OkStatus());  // returns, though no copy can end
  Set(stream_, tensor, 12'000, 4);
  fakecuda_release_copies();
  for (auto& answer : answers) EXPECT_EQ(answer.get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().first(12'000), 3));
  EXPECT_TRUE(IsAll(Read(tensor, 12'000), 4));
}

TEST_F(CudaCopierTest, Rule9WhatIsNotEnqueuedAtTheFenceIsGivenUp) {
  options_.enqueued_max = 1;
  MakeCopier();
  std::byte* tensor = Tensor(12'000, 3);
  HostPages target(12'000);
  fakecuda_hold_copies();
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  auto first = Copy(tensor, target.data(), 4000);
  ASSERT_TRUE(EventuallyEnqueued(1));
  auto second = Copy(tensor + 4000, target.data() + 4000, 4000);
  auto third = Copy(tensor + 8000, target.data() + 8000, 4000);
  RunInTurn(thread_.executor(), [] {});
  EXPECT_EQ(copier_->Fence(stream_), absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(second.get()));
  EXPECT_TRUE(absl::IsAborted(third.get()));
  Set(stream_, tensor, 12'000, 4);
  fakecuda_release_copies();
  EXPECT_EQ(first.get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().first(4000), 3));
  EXPECT_TRUE(IsAll(target.bytes().subspan(4000), 0));
  EXPECT_TRUE(IsAll(Read(tensor, 12'000), 4));
}

TEST_F(CudaCopierTest, Rule9ABucketThatWaitsForABufferIsNotEnqueued) {
  options_.buffers = 1;
  MakeCopier();
  std::byte* tensor = Tensor(8000, 3);
  HostPages target(8000);
  fakecuda_hold_copies();
  auto first = Copy(tensor, target.data(), 4000);
  ASSERT_TRUE(EventuallyEnqueued(1));
  auto second = Copy(tensor + 4000, target.data() + 4000, 4000);
  RunInTurn(thread_.executor(), [] {});
  EXPECT_EQ(copier_->Fence(stream_), absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(second.get()));
  fakecuda_release_copies();
  EXPECT_EQ(first.get(), absl::OkStatus());
  // The buffer is free again.
  EXPECT_EQ(Copy(tensor, target.data() + 4000, 4000).get(), absl::OkStatus());
}

TEST_F(CudaCopierTest, Rule9AFenceWithNothingUnderWayDoesNothing) {
  MakeCopier();
  const int waits = fakecuda_calls("cudaStreamWaitEvent");
  EXPECT_EQ(copier_->Fence(stream_), absl::OkStatus());
  EXPECT_EQ(fakecuda_calls("cudaStreamWaitEvent"), waits);
}

// --- Rule 11: volatile tensors ---

TEST_F(CudaCopierTest, Rule11VolatileTensorsAreCopiedInTheOrderOfTheStream) {
  MakeCopier();
  std::byte* one = Tensor(100, 1);
  std::byte* two = Tensor(3000, 1);
  HostPages target(4096);
  ASSERT_EQ(copier_->Reserve(256 + 3072), absl::OkStatus());
  Gate kernel(stream_);
  Set(stream_, one, 100, 7);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  const auto staged = copier_->CopyVolatile(
      {{one, target.data(), 100, true}, {two, target.data() + 100, 3000, true}}, stream_);
  ASSERT_TRUE(staged.ok()) << staged.status();  // while the stream stands still
  Set(stream_, one, 100, 8);
  Set(stream_, two, 3000, 8);
  kernel.Open();
  EXPECT_EQ(Copy(*staged).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().first(100), 7));
  EXPECT_TRUE(IsAll(target.bytes().subspan(100, 3000), 1));
  EXPECT_TRUE(IsAll(Read(one, 100), 8));
}

TEST_F(CudaCopierTest, Rule11DeclaredWritersWaitForTheStagingToo) {
  MakeCopier();
  cudaStream_t writer = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(copier_->SetWriters({writer}), absl::OkStatus());
  ASSERT_EQ(copier_->Reserve(4096), absl::OkStatus());
  std::byte* tensor = Tensor(4096, 1);
  HostPages target(4096);
  Gate kernel(stream_);  // the staging cannot begin
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  const auto staged = copier_->CopyVolatile({{tensor, target.data(), 4096, true}}, stream_);
  ASSERT_TRUE(staged.ok()) << staged.status();
  Set(writer, tensor, 4096, 9);
  kernel.Open();
  EXPECT_EQ(Copy(*staged).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes(), 1));
  EXPECT_TRUE(IsAll(Read(tensor, 4096), 9));
}

TEST_F(CudaCopierTest, Rule11TheStagingIsBounded) {
  MakeCopier();
  const absl::Status status = copier_->Reserve(options_.staging_bytes_max + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("needed 65537 bytes of staging, found 65536"));
  EXPECT_EQ(copier_->Reserve(options_.staging_bytes_max), absl::OkStatus());
}

TEST_F(CudaCopierTest, Rule11WhatWasNotReservedIsNotStaged) {
  MakeCopier();
  std::byte* tensor = Tensor(300, 1);
  HostPages target(300);
  ASSERT_EQ(copier_->Reserve(256), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(
      copier_->CopyVolatile({{tensor, target.data(), 300, true}}, stream_).status()));
}

// --- Buckets and pinned memory ---

TEST_F(CudaCopierTest, ThousandsOfSmallTensorsAreOneCallABucket) {
  options_.buffers = 32;
  MakeCopier();
  constexpr size_t kTensors = 2000;
  std::byte* tensors = Tensor(kTensors * 64, 1);
  for (size_t i = 0; i < kTensors; ++i) Set(stream_, tensors + i * 64, 40, static_cast<int>(i));
  HostPages target(kTensors * 40);
  ASSERT_EQ(copier_->Begin(stream_), absl::OkStatus());
  const int before = Enqueued();
  std::vector<CopyOp> ops;
  for (size_t i = 0; i < kTensors; ++i) {
    ops.push_back({tensors + i * 64, target.data() + i * 40, 40, true});
  }
  EXPECT_EQ(Copy(std::move(ops)).get(), absl::OkStatus());
  EXPECT_EQ(Enqueued() - before, 1);
  for (size_t i = 0; i < kTensors; ++i) {
    ASSERT_TRUE(IsAll(target.bytes().subspan(i * 40, 40), static_cast<int>(i))) << i;
  }
}

TEST_F(CudaCopierTest, RegisteredMemoryIsCopiedToStraight) {
  options_.buffers = 1;  // too few for the bucket
  MakeCopier();
  std::byte* tensor = Tensor(100'000, 6);
  HostPages target(100'000);
  auto keep = std::make_shared<int>();
  const auto pin = copier_->Pin(keep, target.bytes());
  ASSERT_TRUE(EventuallyPinned());
  EXPECT_EQ(copier_->pins().progress().pinned, target.size());
  // Across the borders of chunks, which no copy may cross.
  EXPECT_EQ(Copy(tensor, target.data() + 1, 100'000).get(), absl::OkStatus());
  EXPECT_TRUE(IsAll(target.bytes().subspan(1, 100'000), 6));
  EXPECT_THAT(copier_->Describe(), HasSubstr("CUDA device 0, 102400 of 102400 bytes pinned"));
}

TEST_F(CudaCopierTest, ABucketLargerThanAllBuffersFailsAndSaysSo) {
  options_.buffers = 1;
  MakeCopier();
  std::byte* tensor = Tensor(5000, 6);
  HostPages target(5000);
  const absl::Status status = Copy(tensor, target.data(), 5000).get();
  EXPECT_THAT(std::string(status.message()), HasSubstr("larger than 1 buffers of 4096 bytes"));
}

TEST_F(CudaCopierTest, MemoryIsUnregisteredBeforeItIsUnmapped) {
  MakeCopier();
  void* mapped = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::atomic<bool> unmapped = false;
  std::shared_ptr<void> owner(mapped, [&](void* memory) {
    munmap(memory, 1 << 16);
    unmapped = true;
  });
  auto pin = copier_->Pin(std::move(owner), {static_cast<std::byte*>(mapped), 1 << 16});
  ASSERT_TRUE(EventuallyPinned());
  EXPECT_EQ(fakecuda_pinned_bytes(), size_t{1} << 16);
  pin.reset();
  ASSERT_TRUE(Eventually([&] { return unmapped.load(); }));
  EXPECT_EQ(fakecuda_pinned_bytes(), 0u);
}

TEST_F(CudaCopierTest, MemoryThatIsHeldLongerThanTheCopierIsUnregisteredWithIt) {
  MakeCopier();
  HostPages target(1 << 16);
  auto keep = std::make_shared<int>();
  auto pin = copier_->Pin(keep, target.bytes());
  ASSERT_TRUE(EventuallyPinned());
  copier_.reset();
  EXPECT_EQ(fakecuda_pinned_bytes(), 0u);
  pin.reset();
  EXPECT_EQ(keep.use_count(), 1);
}

TEST_F(CudaCopierTest, ABucketOfNothingIsAnswered) {
  MakeCopier();
  EXPECT_EQ(Copy({}).get(), absl::OkStatus());
}

TEST_F(CudaCopierTest, EndingAnswersWhatIsQueuedAndWaitsForWhatIsUnderWay) {
  options_.enqueued_max = 1;
  MakeCopier();
  std::byte* tensor = Tensor(4096, 6);
  HostPages target(8192);
  auto first = Copy(tensor, target.data(), 4096);
  ASSERT_TRUE(EventuallyEnqueued(1));
  auto second = Copy(tensor, target.data() + 4096, 4096);
  RunInTurn(thread_.executor(), [] {});
  copier_.reset();
  EXPECT_EQ(first.get(), absl::OkStatus());
  const absl::Status status = second.get();
  EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
}

// --- Restore ---

TEST_F(CudaCopierTest, RestoreComesAfterWhatTheJobQueuedForItsNewTensors) {
  MakeCopier();
  std::byte* tensor = Tensor(50'000, 1);
  HostPages source(50'000);
  std::memset(source.data(), 5, source.size());
  Set(stream_, tensor, 50'000, 0);
  ASSERT_EQ(copier_->BeginRestore(), absl::OkStatus());
  const CopyOp op{source.data(), tensor, 50'000, true};
  EXPECT_EQ(copier_->Restore({&op, 1}), absl::OkStatus());
  std::memset(source.data(), 6, source.size());  // the source may go at once
  EXPECT_EQ(copier_->EndRestore(), absl::OkStatus());
  EXPECT_TRUE(IsAll({tensor, tensor + 50'000}, 5));
}

TEST_F(CudaCopierTest, RestoreOnManyThreads) {
  MakeCopier();
  constexpr size_t kShare = 30'000;
  std::byte* tensor = Tensor(4 * kShare, 1);
  HostPages source(4 * kShare);
  for (size_t i = 0; i < 4 * kShare; ++i) source.data()[i] = static_cast<std::byte>(i * 31);
  ASSERT_EQ(copier_->BeginRestore(), absl::OkStatus());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (size_t at = i * kShare; at < (i + 1) * kShare; at += 1000) {
          const CopyOp op{source.data() + at, tensor + at, 1000, true};
          EXPECT_EQ(copier_->Restore({&op, 1}), absl::OkStatus());
        }
      });
    }
  }
  EXPECT_EQ(copier_->EndRestore(), absl::OkStatus());
  EXPECT_EQ(std::memcmp(tensor, source.data(), 4 * kShare), 0);
}

}  // namespace
}  // namespace unreft::snapshot
