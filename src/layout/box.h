// Box: a half-open n-dimensional interval of elements, and how its rows lie in memory. Pure.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::layout {

// [offset, offset + extent) in each dimension; no dimensions = one element.
struct Box {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> extent;

  uint64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

Box BoxOf(const TensorSpec& spec);

// The common part; none when it is empty. Both have the same number of dimensions.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Calls `run(a_begin, b_begin, elements)` for every maximal run of elements of `part` that is
// contiguous in both row-major dense arrays `a` and `b`, in the order of `part`. `part` lies within
// both. Positions are in elements from the arrays' beginnings.
void ForEachRun(const Box& part, const Box& a, const Box& b,
                absl::FunctionRef<void(uint64_t a_begin, uint64_t b_begin, uint64_t elements)> run);

}  // namespace unreft::layout
