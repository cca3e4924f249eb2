// BoundTensor: a shard and where its bytes are in this process. Plain data; does not own them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::snapshot {

inline constexpr int32_t kHostMemory = -1;

struct BoundTensor {
  TensorSpec spec;
  std::byte* data = nullptr;          // ShardBytes(spec) bytes, dense and row-major
  int32_t cuda_device = kHostMemory;  // whose memory it is

  bool on_device() const { return cuda_device != kHostMemory; }
};

// Whether any is.
bool IsOnDevice(std::span<const BoundTensor> tensors);

std::vector<TensorSpec> SpecsOf(const std::vector<BoundTensor>& tensors);

}  // namespace unreft::snapshot
