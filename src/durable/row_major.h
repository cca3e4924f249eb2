// Puts the elements of a dense array that lies in another order of its dimensions into row-major
// order, a stretch at a time, as far as the order allows: a convolution's weight in channels_last
// by whole indices of its outermost dimension, a transposed matrix only as a whole. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/memory_order.h"

namespace unreft::durable {

// As it lies in memory.
struct OrderedArray {
  std::vector<uint64_t> extent;  // of the dimensions from the slowest to the fastest, none zero
  layout::MemoryOrder order;     // which those are; empty: row-major
  uint64_t element_bytes = 1;
};

// Of an array that has to be held at once, beside as much again of what becomes of it.
inline constexpr uint64_t kAtOnceBytesMax = uint64_t{256} << 20;

// The fewest bytes of a stretch: each multiple of them has the same elements in both orders. One
// element of an array in row-major order.
uint64_t AtOnceBytes(const OrderedArray& array);

// From a stretch of whole multiples of AtOnceBytes, the same elements in row-major order. `from`
// and `into` have equally many bytes: it is checked.
void ToRowMajor(const OrderedArray& array, std::span<const std::byte> from,
                std::span<std::byte> into);

}  // namespace unreft::durable
