#include "layout/box_range.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "layout/tensor_table.h"

namespace unreft::layout {
namespace {

// The largest box that begins at element `at` of `box` and has no element from `end` on: of the
// outermost dimension of which a whole index begins there and fits, as many indices as fit.
Box BoxAt(const Box& box, std::span<const uint64_t> strides, uint64_t at, uint64_t end) {
  Box part{box.offset, std::vector<uint64_t>(box.offset.size(), 1)};
  uint64_t rest = at;
  for (size_t d = 0; d < strides.size(); ++d) {
    const uint64_t index = rest / strides[d];
    rest %= strides[d];
    part.offset[d] += index;
    if (rest != 0 || end - at < strides[d]) continue;
    part.extent[d] = std::min(box.extent[d] - index, (end - at) / strides[d]);
    std::copy(box.extent.begin() + static_cast<ptrdiff_t>(d) + 1, box.extent.end(),
              part.extent.begin() + static_cast<ptrdiff_t>(d) + 1);
    break;
  }
  return part;
}

}  // namespace

absl::StatusOr<std::vector<RangePart>> DivideRange(const TensorSpec& whole, uint64_t begin,
                                                   uint64_t end) {
  // After it no product of extents overflows.
  if (absl::Status status = CheckTensorSpec(whole); !status.ok()) return status;
  const Box box = BoxOf(whole);
  if (begin > end || end > box.elements()) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}': its range needs 0 <= begin <= end <= {}, the elements of the box "
                    "{}, found begin {} and end {}",
                    CleanText(whole.name, 256), box.elements(), BoxText(box), begin, end));
  }
  const std::vector<uint64_t> strides = Strides(box.extent);
  std::vector<RangePart> parts;
  for (uint64_t at = begin; at < end; at += parts.back().box.elements()) {
    parts.push_back({BoxAt(box, strides, at, end), at - begin});
  }
  return parts;
}

}  // namespace unreft::layout
