#include "layout/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"

namespace unreft::layout {
namespace {

// How the dimensions of a part make runs of elements, and rows of runs.
struct Nest {
  uint64_t elements = 1;  // of a run: the inner dimensions that the part fills, and one more
  uint64_t rows = 1;      // the dimensions outside of those, as far as one pitch leads through all
  size_t pitch = 0;       // the dimension whose stride that is, if there are several rows
  size_t outer = 0;       // dimensions that are left
};

Nest NestOf(const Box& part, const Box& a, const Box& b) {
  const auto fills = [&](size_t d) {
    return part.extent[d] == a.extent[d] && part.extent[d] == b.extent[d];
  };
  Nest nest;
  size_t d = part.extent.size();
  bool whole = true;
  while (d > 0 && whole) {
    nest.elements *= part.extent[--d];
    whole = fills(d);
  }
  // A dimension in which the part is one element wide needs no pitch.
  whole = true;
  while (d > 0 && (whole || nest.rows == 1)) {
    --d;
    if (nest.rows == 1) nest.pitch = d;
    nest.rows *= part.extent[d];
    whole = fills(d);
  }
  nest.outer = d;
  return nest;
}

}  // namespace

uint64_t Box::elements() const {
  uint64_t elements = 1;
  for (const uint64_t e : extent) elements *= e;
  return elements;
}

std::vector<uint64_t> Strides(std::span<const uint64_t> extent) {
  std::vector<uint64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
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

uint64_t RowsOf(const Box& part, const Box& a, const Box& b) {
  const Nest nest = NestOf(part, a, b);
  uint64_t calls = 1;
  for (size_t d = 0; d < nest.outer; ++d) calls *= part.extent[d];
  return calls;
}

void ForEachRows(const Box& part, const Box& a, const Box& b,
                 absl::FunctionRef<void(const Rows& rows)> rows) {
  const std::vector<uint64_t> a_strides = Strides(a.extent);
  const std::vector<uint64_t> b_strides = Strides(b.extent);
  const Nest nest = NestOf(part, a, b);
  Rows next{.elements = nest.elements, .count = nest.rows};
  if (nest.rows > 1) {
    next.a_pitch = a_strides[nest.pitch];
    next.b_pitch = b_strides[nest.pitch];
  }
  for (size_t d = 0; d < part.offset.size(); ++d) {
    next.a_begin += (part.offset[d] - a.offset[d]) * a_strides[d];
    next.b_begin += (part.offset[d] - b.offset[d]) * b_strides[d];
  }
  std::vector<uint64_t> index(nest.outer, 0);  // an odometer over the outer dimensions
  while (true) {
    rows(next);
    size_t d = nest.outer;
    while (d > 0 && ++index[d - 1] == part.extent[d - 1]) {
      --d;
      index[d] = 0;
      next.a_begin -= (part.extent[d] - 1) * a_strides[d];
      next.b_begin -= (part.extent[d] - 1) * b_strides[d];
    }
    if (d == 0) return;
    next.a_begin += a_strides[d - 1];
    next.b_begin += b_strides[d - 1];
  }
}

}  // namespace unreft::layout
