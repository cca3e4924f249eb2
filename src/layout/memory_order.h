// In which order the dimensions of a dense tensor lie in memory, where that is not row-major: a
// convolution's weight in channels_last, say. Pure.
//
// Everything behind the C ABI knows row-major boxes alone. There such a tensor is the one of the
// permuted shape, under a name that says the order: "conv.weight[memory_order=0,2,3,1]" of shape
// [64, 3, 3, 3] is the logical tensor conv.weight, whose dimensions lie as 0 (slowest), 2, 3, 1
// (fastest). So the layout's digest covers the order, a manifest has it, and bytes of one order
// never land in a tensor of another, whatever release wrote or reads them.
//
// A dimension of one element has no place in memory: orders that differ in such alone are one.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::layout {

// Dimensions from the slowest to the fastest; empty: row-major.
using MemoryOrder = std::vector<uint32_t>;

// A tensor as its owner names and shapes it.
struct LogicalTensor {
  TensorSpec spec;
  MemoryOrder order;
};

// The spec behind the ABI. InvalidArgument, naming the tensor, for a name that says an order
// already, and for what is no permutation of the tensor's dimensions.
absl::StatusOr<TensorSpec> InMemoryOrder(TensorSpec logical, std::span<const uint32_t> order);

LogicalTensor ToLogical(TensorSpec behind);

// FailedPrecondition, naming the tensor and both orders, when a target of a restore lies in another
// order than all that is stored under its name.
absl::Status CheckMemoryOrders(std::span<const LogicalTensor> stored,
                               std::span<const TensorSpec* const> targets);

}  // namespace unreft::layout
