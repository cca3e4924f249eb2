// A range of a box: a run of its elements, numbered in row-major order within it, as flat buffers
// are cut among ranks. Everything behind the C ABI knows boxes alone, so a range is divided into
// boxes, each of which is one stretch of the range's data. Pure.
//
//   . . . A A      elements [3, 17) of the box [0:4, 0:5)
//   B B B B B        A  [0:1, 3:5)   from element 0 of the range on
//   B B B B B        B  [1:3, 0:5)   from 2
//   C C . . .        C  [3:4, 0:2)   from 12
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "base/tensor_spec.h"
#include "layout/box.h"

namespace unreft::layout {

struct RangePart {
  Box box;             // of the tensor, as the box that the range is of
  uint64_t begin = 0;  // elements from the beginning of the range: where its data lie
  friend bool operator==(const RangePart&, const RangePart&) = default;
};

// The elements [begin, end) of the box of `whole`, in order: disjoint boxes that are dense in the
// range's data, one behind the other. At most 2 * dims - 1, one for a scalar; none for an empty
// range, as a rank that has nothing of a tensor has no shard of it. InvalidArgument, naming the
// tensor and the numbers, for what CheckTensorSpec refuses, and unless begin <= end and the box has
// `end` elements.
absl::StatusOr<std::vector<RangePart>> DivideRange(const TensorSpec& whole, uint64_t begin,
                                                   uint64_t end);

}  // namespace unreft::layout
