// CudaFixture: a CudaCopier on the fake runtime, and a trainer's side of it: a stream, tensors on
// the device, work on the stream that takes until it is let go.
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/asio_executor.h"
#include "base/check.h"
#include "snapshot/cuda_copier.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/snapshot/turns.h"

namespace unreft::snapshot {

// Work on a stream that is not over before it is let go.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    UNREFT_CHECK(cudaLaunchHostFunc(stream, &Gate::Wait, this) == cudaSuccess, "a gate is there");
  }
  ~Gate() {
    Open();
    over_.wait(false);
  }
  void Open() {
    open_ = true;
    open_.notify_all();
  }
  // Until the stream has come to it: what is dropped before that never is over.
  void AwaitBegun() { begun_.wait(false); }

 private:
  static void Wait(void* gate) {
    auto* self = static_cast<Gate*>(gate);
    self->begun_ = true;
    self->begun_.notify_all();
    self->open_.wait(false);
    self->over_ = true;
    self->over_.notify_all();
  }
  std::atomic<bool> begun_ = false;
  std::atomic<bool> open_ = false;
  std::atomic<bool> over_ = false;
};

// The test's own calls neither fail when the copier's are to fail nor count.
class TestsOwn {
 public:
  TestsOwn() { fakecuda_exempt_thread(1); }
  ~TestsOwn() { fakecuda_exempt_thread(0); }
};

// Whole pages of zeros.
class HostPages {
 public:
  explicit HostPages(size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        memory_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_))) {
    std::memset(memory_, 0, bytes_);
  }
  ~HostPages() { std::free(memory_); }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  std::byte* data() const { return memory_; }
  size_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {memory_, bytes_}; }

 private:
  const size_t bytes_;
  std::byte* const memory_;
};

class CudaFixture : public testing::Test {
 protected:
  CudaFixture() { fakecuda_restart(2); }
  void SetUp() override { ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamDefault), 0); }
  void TearDown() override {
    fakecuda_release_copies();
    copier_.reset();
    thread_.Join();
    EXPECT_STREQ(fakecuda_violations(), "");
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }

  void MakeCopier() {
    auto made = CudaCopier::Create(thread_.executor(), 0, options_);
    ASSERT_TRUE(made.ok()) << made.status();
    copier_ = *std::move(made);
  }

  // Lives until the runtime is restarted.
  std::byte* Tensor(size_t bytes, int value) {
    const TestsOwn own;
    void* made = nullptr;
    UNREFT_CHECK(cudaMalloc(&made, bytes) == cudaSuccess, "device memory");
    Set(stream_, made, bytes, value);
    UNREFT_CHECK(cudaStreamSynchronize(stream_) == cudaSuccess, "the tensor is set");
    return static_cast<std::byte*>(made);
  }
  static void Set(cudaStream_t stream, void* tensor, size_t bytes, int value) {
    UNREFT_CHECK(cudaMemsetAsync(tensor, value, bytes, stream) == cudaSuccess, "a kernel");
  }
  // What the device holds once it has done all that it was given.
  static std::vector<std::byte> Read(const std::byte* tensor, size_t bytes) {
    const TestsOwn own;
    UNREFT_CHECK(cudaDeviceSynchronize() == cudaSuccess, "the device is done");
    return {tensor, tensor + bytes};  // the fake's device memory is the host's
  }

  // Queues a bucket in a turn; its answer.
  std::future<absl::Status> Copy(std::vector<CopyOp> ops) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    std::future<absl::Status> future = answer->get_future();
    thread_.executor().Post([this, ops = std::move(ops), answer]() mutable {
      copier_->CopyBucket(std::move(ops), [this, answer](absl::Status status) {
        EXPECT_TRUE(thread_.executor().InTurn());
        answer->set_value(std::move(status));
      });
    });
    return future;
  }
  std::future<absl::Status> Copy(const std::byte* source, std::byte* target, size_t bytes) {
    return Copy({{source, target, bytes, true}});
  }
  static bool IsReady(std::future<absl::Status>& answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  // Until other threads have made it true; false after a time that no machine needs.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Until the copy thread has given so many buckets to the device since `before`.
  static int Enqueued() {
    return fakecuda_calls("cudaMemcpyAsync") + fakecuda_calls("cudaMemcpyBatchAsync");
  }
  bool EventuallyEnqueued(int calls) {
    return Eventually([=] { return Enqueued() >= calls; });
  }
  bool EventuallyPinned() {
    return Eventually([&] { return !copier_->pins().progress().busy; });
  }

  static bool IsAll(std::span<const std::byte> bytes, int value) {
    return std::all_of(bytes.begin(), bytes.end(),
                       [=](std::byte byte) { return byte == static_cast<std::byte>(value); });
  }

  ExecutorThread thread_{"copier"};
  CudaOptions options_{.buffer_bytes = 4096,
                       .buffers = 8,
                       .pin_chunk_bytes = 8192,
                       .enqueued_max = 64,
                       .staging_bytes_max = 1 << 16};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CudaCopier> copier_;
};

}  // namespace unreft::snapshot
