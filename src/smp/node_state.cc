#include "smp/node_state.h"

namespace unreft::smp {

std::vector<WireTensor> ToWire(std::span<const TensorSpec> specs) {
  std::vector<WireTensor> tensors;
  tensors.reserve(specs.size());
  for (const TensorSpec& spec : specs) tensors.push_back({spec});
  return tensors;
}

std::vector<TensorSpec> FromWire(std::vector<WireTensor> tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (WireTensor& tensor : tensors) specs.push_back(std::move(tensor.spec));
  return specs;
}

}  // namespace unreft::smp
