// The copiers' suite on a device that is there, with the real CUDA runtime. Ends with 77 where none
// is.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "base/check.h"
#include "snapshot/cuda_copier.h"
#include "snapshot/cuda_image.h"
#include "tests/conformance/device_copier_conformance.h"

namespace unreft::snapshot {
namespace {

class GpuWorld final : public DeviceCopierWorld {
 public:
  GpuWorld() {
    UNREFT_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamDefault) == cudaSuccess, "a stream");
  }
  ~GpuWorld() override {
    for (void* tensor : tensors_) UNREFT_CHECK(cudaFree(tensor) == cudaSuccess, "freed");
    UNREFT_CHECK(cudaStreamDestroy(stream_) == cudaSuccess, "the stream's end");
  }
  std::unique_ptr<DeviceCopier> NewCopier(Executor& executor) override {
    auto made = CudaCopier::Create(
        executor, 0, {.buffer_bytes = 8192, .buffers = 16, .checksum = computes_crcs()});
    UNREFT_CHECK(made.ok(), "{}", std::string(made.status().message()));
    return *std::move(made);
  }
  bool computes_crcs() const override { return !ChecksumImage().empty(); }
  int32_t device() const override { return 0; }
  void* stream() override { return stream_; }
  std::byte* NewTensor(size_t bytes) override {
    UNREFT_CHECK(cudaMalloc(&tensors_.emplace_back(), bytes) == cudaSuccess, "device memory");
    return static_cast<std::byte*>(tensors_.back());
  }
  void Write(std::byte* tensor, size_t bytes, int value) override {
    UNREFT_CHECK(cudaMemsetAsync(tensor, value, bytes, stream_) == cudaSuccess, "a kernel");
  }
  std::vector<std::byte> Read(const std::byte* tensor, size_t bytes) override {
    void* pinned = nullptr;
    UNREFT_CHECK(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault) == cudaSuccess, "pinned");
    UNREFT_CHECK(
        cudaMemcpyAsync(pinned, tensor, bytes, cudaMemcpyDeviceToHost, stream_) == cudaSuccess &&
            cudaDeviceSynchronize() == cudaSuccess,
        "the device is done");
    const auto* read = static_cast<const std::byte*>(pinned);
    std::vector<std::byte> found(read, read + bytes);
    UNREFT_CHECK(cudaFreeHost(pinned) == cudaSuccess, "freed");
    return found;
  }
  std::string Complaints() override {
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? "" : cudaGetErrorName(error);
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> tensors_;
};

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceCopierConformance,
                         testing::Values(DeviceCopierWorldMaker{
                             "Cuda", [] { return std::make_unique<GpuWorld>(); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace unreft::snapshot

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
