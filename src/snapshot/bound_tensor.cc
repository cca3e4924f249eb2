#include "snapshot/bound_tensor.h"

namespace unreft::snapshot {

std::vector<TensorSpec> SpecsOf(const std::vector<BoundTensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const BoundTensor& tensor : tensors) specs.push_back(tensor.spec);
  return specs;
}

}  // namespace unreft::snapshot
