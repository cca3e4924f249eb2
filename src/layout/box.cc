#include "layout/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"

namespace unreft::layout {
namespace {

// Strides, in elements, of a dense row-major array of these extents.
std::vector<uint64_t> Strides(std::span<const uint64_t> extent) {
  std::vector<uint64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

}  // namespace

uint64_t Box::elements() const {
  uint64_t elements = 1;
  for (const uint64_t e : extent) elements *= e;
  return elements;
}

Box BoxOf(const TensorSpec& spec) { return {spec.offset, spec.extent}; }

std::string BoxText(const Box& box) {
  std::vector<std::string> ranges;
  ranges.reserve(box.offset.size());
  for (size_t d = 0; d < box.offset.size(); ++d) {
    ranges.push_back(fmt::format("{}:{}", box.offset[d], box.offset[d] + box.extent[d]));
  }
  return fmt::format("[{})", fmt::join(ranges, ", "));
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  UNREFT_CHECK(a.offset.size() == b.offset.size(), "{} and {}", BoxText(a), BoxText(b));
  if (!Overlap(a, b)) return std::nullopt;
  Box common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const uint64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    common.offset[d] = std::max(a.offset[d], b.offset[d]);
    common.extent[d] = end - common.offset[d];
  }
  return common;
}

bool Overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

uint64_t RunsOf(const Box& part, const Box& a, const Box& b) {
  size_t outer = part.extent.size();
  while (outer > 0) {
    --outer;
    if (part.extent[outer] != a.extent[outer] || part.extent[outer] != b.extent[outer]) break;
  }
  uint64_t runs = 1;
  for (size_t d = 0; d < outer; ++d) runs *= part.extent[d];
  return runs;
}

void ForEachRun(
    const Box& part, const Box& a, const Box& b,
    absl::FunctionRef<void(uint64_t a_begin, uint64_t b_begin, uint64_t elements)> run) {
  // The inner dimensions that the part fills in both arrays, and one more, make one run.
  size_t outer = part.extent.size();
  uint64_t elements = 1;
  while (outer > 0) {
    --outer;
    elements *= part.extent[outer];
    if (part.extent[outer] != a.extent[outer] || part.extent[outer] != b.extent[outer]) break;
  }
  const std::vector<uint64_t> a_strides = Strides(a.extent);
  const std::vector<uint64_t> b_strides = Strides(b.extent);
  uint64_t a_begin = 0;
  uint64_t b_begin = 0;
  for (size_t d = 0; d < part.offset.size(); ++d) {
    a_begin += (part.offset[d] - a.offset[d]) * a_strides[d];
    b_begin += (part.offset[d] - b.offset[d]) * b_strides[d];
  }
  std::vector<uint64_t> index(outer, 0);  // of the row, an odometer over the outer dimensions
  while (true) {
    run(a_begin, b_begin, elements);
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == part.extent[d - 1]) {
      --d;
      index[d] = 0;
      a_begin -= (part.extent[d] - 1) * a_strides[d];
      b_begin -= (part.extent[d] - 1) * b_strides[d];
    }
    if (d == 0) return;
    a_begin += a_strides[d - 1];
    b_begin += b_strides[d - 1];
  }
}

}  // namespace unreft::layout
