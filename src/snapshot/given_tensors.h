// GivenTensors: what a caller gives, as the shards that it is registered and restored by. A tensor
// that is a range of its box is several shards of one name, in the order of its data, or none if
// the range is empty; every other one is a shard by itself. Plain data.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "snapshot/bound_tensor.h"

namespace unreft::snapshot {

struct GivenTensors {
  std::vector<BoundTensor> shards;
  // Of each tensor, in the order in which they were given: where its shards end. By this the
  // caller's number of a tensor goes on to mean that tensor.
  std::vector<size_t> ends;

  GivenTensors() = default;
  // Each is a shard by itself.
  GivenTensors(std::vector<BoundTensor> tensors);  // NOLINT: what has no ranges is given so

  void Add(BoundTensor tensor);
  // The elements [begin, end) of the box of `tensor`, row-major within it, which lie at its `data`.
  // InvalidArgument, naming the tensor and the numbers, as of layout::DivideRange.
  absl::Status AddRange(const BoundTensor& tensor, uint64_t begin, uint64_t end);
};

// The ends of tensors that are a shard each.
std::vector<size_t> EachByItself(size_t tensors);

}  // namespace unreft::snapshot
