#include "snapshot/cuda_kernel.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::snapshot {

absl::StatusOr<std::shared_ptr<const CudaKernel>> CudaKernel::Load(
    std::shared_ptr<const CudaDevice> device, std::span<const unsigned char> image,
    const char* name) {
  const CudaApi& api = device->api();
  const CudaScope scope(*device);
  std::shared_ptr<CudaKernel> made(new CudaKernel(std::move(device), name));
  absl::Status status = scope.status();
  if (status.ok()) {
    status = scope.Check(api.cudaLibraryLoadData(&made->library_, image.data(), nullptr, nullptr, 0,
                                                 nullptr, nullptr, 0),
                         fmt::format("loading kernel {}", name));
  }
  if (status.ok()) {
    status = scope.Check(api.cudaLibraryGetKernel(&made->kernel_, made->library_, name),
                         fmt::format("looking for kernel {}", name));
  }
  if (!status.ok()) return status;
  return std::shared_ptr<const CudaKernel>(std::move(made));
}

CudaKernel::~CudaKernel() {
  if (library_ == nullptr) return;
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return;  // gone with the context
  scope.Check(device_->api().cudaLibraryUnload(library_), "unloading a kernel").IgnoreError();
}

absl::Status CudaKernel::Launch(const CudaScope& scope, uint32_t blocks, uint32_t threads,
                                void** arguments, cudaStream_t stream) const {
  cudaLaunchConfig_t config{};
  config.gridDim = {blocks, 1, 1};
  config.blockDim = {threads, 1, 1};
  config.stream = stream;
  return scope.Check(device_->api().cudaLaunchKernelExC(&config, kernel_, arguments),
                     fmt::format("launching kernel {}", name_));
}

}  // namespace unreft::snapshot
