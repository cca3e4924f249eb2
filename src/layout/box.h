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

// Of a dense row-major array of these extents, in elements.
std::vector<uint64_t> Strides(std::span<const uint64_t> extent);

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

// Runs of elements at equal distances: run i begins at a_begin + i * a_pitch of one array and at
// b_begin + i * b_pitch of the other. All in elements; the pitches of a single run are 0.
struct Rows {
  uint64_t a_begin = 0;
  uint64_t b_begin = 0;
  uint64_t elements = 0;  // of a run
  uint64_t count = 1;
  uint64_t a_pitch = 0;
  uint64_t b_pitch = 0;
};

// How often ForEachRows would call.
uint64_t RowsOf(const Box& part, const Box& a, const Box& b);

// Calls `rows` for the maximal runs of `part` that are contiguous in both row-major dense arrays
// `a` and `b`, those that lie at equal distances in both together, in the order of `part`, which
// lies within both. For boxes that are cut in one dimension, whichever, that is a single call.
void ForEachRows(const Box& part, const Box& a, const Box& b,
                 absl::FunctionRef<void(const Rows& rows)> rows);

}  // namespace unreft::layout
