// CudaKernel: a kernel that libunreft carries as bytes (cuda_image.h), loaded for one device.
// Immutable, so thread-safe. In a CudaScope, as its end is.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "snapshot/cuda_device.h"

namespace unreft::snapshot {

class CudaKernel {
 public:
  static absl::StatusOr<std::shared_ptr<const CudaKernel>> Load(
      std::shared_ptr<const CudaDevice> device, std::span<const unsigned char> image,
      const char* name);
  ~CudaKernel();
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  absl::Status Launch(const CudaScope& scope, uint32_t blocks, uint32_t threads, void** arguments,
                      cudaStream_t stream) const;

 private:
  CudaKernel(std::shared_ptr<const CudaDevice> device, const char* name)
      : device_(std::move(device)), name_(name) {}

  const std::shared_ptr<const CudaDevice> device_;
  const char* const name_;
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

}  // namespace unreft::snapshot
