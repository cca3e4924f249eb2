#include "snapshot/bound_tensor.h"

#include <algorithm>

namespace unreft::snapshot {

bool IsOnDevice(std::span<const BoundTensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const BoundTensor& tensor) { return tensor.on_device(); });
}

std::vector<TensorSpec> SpecsOf(const std::vector<BoundTensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const BoundTensor& tensor : tensors) specs.push_back(tensor.spec);
  return specs;
}

}  // namespace unreft::snapshot
