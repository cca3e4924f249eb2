#include "snapshot/cuda_buffers.h"

#include <fmt/format.h>

#include <string>

namespace unreft::snapshot {

absl::StatusOr<std::unique_ptr<CudaBuffers>> CudaBuffers::Create(
    std::shared_ptr<const CudaDevice> device, size_t buffer_bytes, size_t count) {
  std::unique_ptr<CudaBuffers> buffers(new CudaBuffers(std::move(device), buffer_bytes, count));
  const CudaApi& api = buffers->device_->api();
  const cudaError_t error =
      api.cudaHostAlloc(&buffers->memory_, buffer_bytes * count, cudaHostAllocDefault);
  if (error != cudaSuccess) {
    api.cudaGetLastError();
    buffers->memory_ = nullptr;
    return absl::ResourceExhaustedError(
        api.ToStatus(error,
                     fmt::format("allocating {} bytes of pinned memory", buffer_bytes * count))
            .message());
  }
  for (size_t i = 0; i < count; ++i) {
    buffers->free_.push_back(static_cast<std::byte*>(buffers->memory_) + i * buffer_bytes);
  }
  return buffers;
}

CudaBuffers::~CudaBuffers() {
  if (memory_ == nullptr || !device_->CheckAlive().ok()) return;
  if (device_->api().cudaFreeHost(memory_) != cudaSuccess) device_->api().cudaGetLastError();
}

size_t CudaBuffers::free() const {
  std::lock_guard lock(mutex_);
  return free_.size();
}

std::vector<std::byte*> CudaBuffers::TryTake(size_t count) {
  std::lock_guard lock(mutex_);
  if (free_.size() < count) return {};
  const std::vector<std::byte*> taken(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

std::byte* CudaBuffers::Take() {
  std::unique_lock lock(mutex_);
  given_.wait(lock, [this] { return !free_.empty(); });
  std::byte* const taken = free_.back();
  free_.pop_back();
  return taken;
}

void CudaBuffers::Give(std::span<std::byte* const> buffers) {
  if (buffers.empty()) return;
  {
    std::lock_guard lock(mutex_);
    free_.insert(free_.end(), buffers.begin(), buffers.end());
  }
  given_.notify_all();
}

}  // namespace unreft::snapshot
