#include "durable/row_major.h"

#include <cstring>

#include "base/check.h"
#include "layout/box.h"

namespace unreft::durable {
namespace {

// Leading dimensions that are where row-major order has them.
size_t InPlace(const OrderedArray& array) {
  if (array.order.empty()) return array.extent.size();
  size_t dims = 0;
  while (dims < array.order.size() && array.order[dims] == dims) ++dims;
  return dims;
}

// The dimensions behind those, in row-major order.
struct Inner {
  std::vector<uint64_t> extent;
  std::vector<uint64_t> stride;  // of each, in elements as they lie
};

Inner InnerOf(const OrderedArray& array) {
  const size_t outer = InPlace(array);
  const std::vector<uint64_t> strides = layout::Strides(array.extent);
  Inner inner;
  inner.extent.resize(array.extent.size() - outer);
  inner.stride.resize(inner.extent.size());
  for (size_t i = outer; i < array.extent.size(); ++i) {
    inner.extent[array.order[i] - outer] = array.extent[i];
    inner.stride[array.order[i] - outer] = strides[i];
  }
  return inner;
}

// One index of the outer dimensions.
template <uint64_t kElement>
void Reorder(const Inner& inner, const std::byte* from, std::byte* into) {
  const size_t last = inner.extent.size() - 1;
  std::vector<uint64_t> index(inner.extent.size(), 0);
  uint64_t begin = 0;  // of the row, in elements as they lie
  while (true) {
    for (uint64_t i = 0; i < inner.extent[last]; ++i, into += kElement) {
      std::memcpy(into, from + (begin + i * inner.stride[last]) * kElement, kElement);
    }
    size_t dim = last;
    while (dim > 0 && ++index[dim - 1] == inner.extent[dim - 1]) {
      begin -= (inner.extent[dim - 1] - 1) * inner.stride[dim - 1];
      index[dim - 1] = 0;
      --dim;
    }
    if (dim == 0) return;
    begin += inner.stride[dim - 1];
  }
}

using ReorderFunction = void (*)(const Inner&, const std::byte*, std::byte*);

ReorderFunction ReorderOf(uint64_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return Reorder<1>;
    case 2:
      return Reorder<2>;
    case 4:
      return Reorder<4>;
    case 8:
      return Reorder<8>;
    case 16:
      return Reorder<16>;
    default:
      return nullptr;
  }
}

}  // namespace

uint64_t AtOnceBytes(const OrderedArray& array) {
  uint64_t bytes = array.element_bytes;
  for (size_t i = InPlace(array); i < array.extent.size(); ++i) bytes *= array.extent[i];
  return bytes;
}

void ToRowMajor(const OrderedArray& array, std::span<const std::byte> from,
                std::span<std::byte> into) {
  const uint64_t at_once = AtOnceBytes(array);
  UNREFT_CHECK(from.size() == into.size() && from.size() % at_once == 0,
               "{} bytes into {}, of {} at once", from.size(), into.size(), at_once);
  const Inner inner = InnerOf(array);
  if (inner.extent.empty()) {
    if (!from.empty()) std::memcpy(into.data(), from.data(), from.size());
    return;
  }
  const ReorderFunction reorder = ReorderOf(array.element_bytes);
  UNREFT_CHECK(reorder != nullptr, "elements of {} bytes", array.element_bytes);
  for (uint64_t at = 0; at < from.size(); at += at_once) {
    reorder(inner, from.data() + at, into.data() + at);
  }
}

}  // namespace unreft::durable
