// BoundTensor: a shard and where its bytes are in this process. Plain data; does not own them.
#pragma once

#include <cstddef>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::snapshot {

struct BoundTensor {
  TensorSpec spec;
  std::byte* data = nullptr;  // ShardBytes(spec) bytes, dense and row-major
};

std::vector<TensorSpec> SpecsOf(const std::vector<BoundTensor>& tensors);

}  // namespace unreft::snapshot
