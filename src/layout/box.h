// Box: a half-open n-dimensional interval of elements, and how its rows lie in memory. Pure.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
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

// For messages: "[0:4, 8:16)", "[)" for a scalar.
std::string BoxText(const Box& box);

// The common part; none when it is empty. Both have the same number of dimensions.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Whether they have an element in common; both have the same number of dimensions.
bool Overlap(const Box& a, const Box& b);

using BoxPair = std::pair<size_t, size_t>;

// The indices of two boxes that have an element in common; which two depends on `boxes` alone. All
// have the same number of dimensions. Cuts the space in two again and again, where the fewest boxes
// lie on both sides: O(n log n) for shards however they are cut from a grid or in stripes.
// ResourceExhausted for boxes that lie so that it would take many times as long.
absl::StatusOr<std::optional<BoxPair>> FindOverlap(std::span<const Box> boxes);

// How often ForEachRun would call.
uint64_t RunsOf(const Box& part, const Box& a, const Box& b);

// Calls `run(a_begin, b_begin, elements)` for every maximal run of elements of `part` that is
// contiguous in both row-major dense arrays `a` and `b`, in the order of `part`. `part` lies within
// both. Positions are in elements from the arrays' beginnings.
void ForEachRun(const Box& part, const Box& a, const Box& b,
                absl::FunctionRef<void(uint64_t a_begin, uint64_t b_begin, uint64_t elements)> run);

}  // namespace unreft::layout
