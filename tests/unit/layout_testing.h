// What the tests of src/layout and src/recovery share: short ways to say tensors, and random
// shards.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "base/tensor_spec.h"
#include "layout/box.h"
#include "layout/box_range.h"

namespace unreft {

using Dims = std::vector<uint64_t>;

inline TensorSpec Spec(std::string name, Dims shape, Dims offset, Dims extent,
                       uint32_t replica_index = 0, uint32_t replica_count = 1,
                       Dtype dtype = Dtype::kFloat32) {
  return {.name = std::move(name),
          .dtype = dtype,
          .global_shape = std::move(shape),
          .offset = std::move(offset),
          .extent = std::move(extent),
          .replica_index = replica_index,
          .replica_count = replica_count};
}

inline TensorSpec Whole(std::string name, const Dims& shape, uint32_t replica_index = 0,
                        uint32_t replica_count = 1, Dtype dtype = Dtype::kFloat32) {
  return Spec(std::move(name), shape, Dims(shape.size(), 0), shape, replica_index, replica_count,
              dtype);
}

inline Dims RandomShape(Random& random, size_t dims_max, uint64_t extent_max) {
  Dims shape(random.Below(dims_max + 1));
  for (uint64_t& extent : shape) extent = 1 + random.Below(extent_max);
  return shape;
}

// [0, length) cut at random places.
inline std::vector<std::pair<uint64_t, uint64_t>> RandomCuts(Random& random, uint64_t length) {
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  for (uint64_t begin = 0; begin < length;) {
    const uint64_t extent = random.OneIn(2) ? length - begin : 1 + random.Below(length - begin);
    pieces.emplace_back(begin, extent);
    begin += extent;
  }
  return pieces;
}

// Disjoint boxes that cover `shape`: a grid cut at random places in each dimension.
inline std::vector<layout::Box> RandomGrid(Random& random, const Dims& shape) {
  std::vector<layout::Box> grid(1);
  for (const uint64_t length : shape) {
    std::vector<layout::Box> finer;
    for (const auto& [begin, extent] : RandomCuts(random, length)) {
      for (layout::Box box : grid) {
        box.offset.push_back(begin);
        box.extent.push_back(extent);
        finer.push_back(std::move(box));
      }
    }
    grid = std::move(finer);
  }
  return grid;
}

// Disjoint boxes that cover `shape`: ranges of it, cut at random elements and divided into boxes.
inline std::vector<layout::Box> RandomRanges(Random& random, const Dims& shape) {
  const TensorSpec whole = Whole("w", shape);
  std::vector<layout::Box> boxes;
  for (const auto& [begin, elements] : RandomCuts(random, ShardElements(whole))) {
    const auto parts = layout::DivideRange(whole, begin, begin + elements);
    for (const layout::RangePart& part : *parts) boxes.push_back(part.box);
  }
  return boxes;
}

// Either.
inline std::vector<layout::Box> RandomShards(Random& random, const Dims& shape) {
  return random.OneIn(2) ? RandomGrid(random, shape) : RandomRanges(random, shape);
}

// Calls f(index) for every element of the box, in row-major order.
template <typename F>
void ForEachElement(const layout::Box& box, F f) {
  Dims index = box.offset;
  for (uint64_t n = box.elements(); n > 0; --n) {
    f(index);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < box.offset[d] + box.extent[d]) break;
      index[d] = box.offset[d];
    }
  }
}

inline bool Contains(const layout::Box& box, const Dims& index) {
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < box.offset[d] || index[d] - box.offset[d] >= box.extent[d]) return false;
  }
  return true;
}

// Where an element lies in the dense row-major array of a box.
inline uint64_t PositionIn(const layout::Box& box, const Dims& index) {
  uint64_t position = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    position = position * box.extent[d] + (index[d] - box.offset[d]);
  }
  return position;
}

}  // namespace unreft
