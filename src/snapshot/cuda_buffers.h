// CudaBuffers: pinned host buffers of one size, for copies whose host memory is not registered.
// Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "snapshot/cuda_device.h"

namespace unreft::snapshot {

class CudaBuffers {
 public:
  // In a CudaScope, as its end is. ResourceExhausted names the bytes.
  static absl::StatusOr<std::unique_ptr<CudaBuffers>> Create(
      std::shared_ptr<const CudaDevice> device, size_t buffer_bytes, size_t count);
  ~CudaBuffers();
  CudaBuffers(const CudaBuffers&) = delete;
  CudaBuffers& operator=(const CudaBuffers&) = delete;

  size_t buffer_bytes() const { return buffer_bytes_; }
  size_t count() const { return count_; }
  size_t free() const;

  // `count` of them, or none when fewer are free.
  std::vector<std::byte*> TryTake(size_t count);
  // Waits for one. Whoever holds them gives them back without waiting for more.
  std::byte* Take();
  void Give(std::span<std::byte* const> buffers);

 private:
  CudaBuffers(std::shared_ptr<const CudaDevice> device, size_t buffer_bytes, size_t count)
      : device_(std::move(device)), buffer_bytes_(buffer_bytes), count_(count) {}

  const std::shared_ptr<const CudaDevice> device_;
  const size_t buffer_bytes_;
  const size_t count_;
  void* memory_ = nullptr;

  mutable std::mutex mutex_;  // covers free_
  std::condition_variable given_;
  std::vector<std::byte*> free_;
};

}  // namespace unreft::snapshot
