// The copiers' suite: host memory, and a CUDA device of the fake runtime.

#include "tests/conformance/device_copier_conformance.h"

#include <cstring>
#include <deque>

#include "base/check.h"
#include "snapshot/host_copier.h"

#ifdef UNREFT_HAS_CUDA
#include <cuda_runtime_api.h>

#include "snapshot/cuda_copier.h"
#include "snapshot/cuda_image.h"
#include "tests/fakes/cudart/fake_cuda.h"
#endif

namespace unreft::snapshot {
namespace {

class HostWorld final : public DeviceCopierWorld {
 public:
  std::unique_ptr<DeviceCopier> NewCopier(Executor& executor) override {
    return std::make_unique<HostCopier>(executor);
  }
  int32_t device() const override { return kHostMemory; }
  void* stream() override { return nullptr; }
  std::byte* NewTensor(size_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void Write(std::byte* tensor, size_t bytes, int value) override {
    std::memset(tensor, value, bytes);
  }
  std::vector<std::byte> Read(const std::byte* tensor, size_t bytes) override {
    return {tensor, tensor + bytes};
  }

 private:
  std::deque<std::vector<std::byte>> memory_;
};

#ifdef UNREFT_HAS_CUDA
class CudaWorld final : public DeviceCopierWorld {
 public:
  CudaWorld() {
    fakecuda_restart(1);
    UNREFT_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamDefault) == cudaSuccess, "a stream");
    fakecuda_delay(30, 5);
  }
  std::unique_ptr<DeviceCopier> NewCopier(Executor& executor) override {
    auto made = CudaCopier::Create(
        executor, 0, {.buffer_bytes = 8192, .buffers = 16, .checksum = computes_crcs()});
    UNREFT_CHECK(made.ok(), "the fake has a device");
    return *std::move(made);
  }
  bool computes_crcs() const override { return !ChecksumImage().empty(); }
  int32_t device() const override { return 0; }
  void* stream() override { return stream_; }
  std::byte* NewTensor(size_t bytes) override {
    void* made = nullptr;
    UNREFT_CHECK(cudaMalloc(&made, bytes) == cudaSuccess, "device memory");
    return static_cast<std::byte*>(made);
  }
  void Write(std::byte* tensor, size_t bytes, int value) override {
    UNREFT_CHECK(cudaMemsetAsync(tensor, value, bytes, stream_) == cudaSuccess, "a kernel");
  }
  std::vector<std::byte> Read(const std::byte* tensor, size_t bytes) override {
    UNREFT_CHECK(cudaDeviceSynchronize() == cudaSuccess, "the device is done");
    return {tensor, tensor + bytes};  // the fake's device memory is the host's
  }
  std::string Complaints() override { return fakecuda_violations(); }

 private:
  cudaStream_t stream_ = nullptr;
};
#endif

std::vector<DeviceCopierWorldMaker> Worlds() {
  std::vector<DeviceCopierWorldMaker> worlds = {
      {"Host", [] { return std::make_unique<HostWorld>(); }}};
#ifdef UNREFT_HAS_CUDA
  worlds.push_back({"Cuda", [] { return std::make_unique<CudaWorld>(); }});
#endif
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(Every, DeviceCopierConformance, testing::ValuesIn(Worlds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace unreft::snapshot
