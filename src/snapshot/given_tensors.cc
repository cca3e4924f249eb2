#include "snapshot/given_tensors.h"

#include <absl/status/statusor.h>

#include <numeric>
#include <utility>

#include "layout/box_range.h"

namespace unreft::snapshot {

GivenTensors::GivenTensors(std::vector<BoundTensor> tensors)
    : shards(std::move(tensors)), ends(EachByItself(shards.size())) {}

void GivenTensors::Add(BoundTensor tensor) {
  shards.push_back(std::move(tensor));
  ends.push_back(shards.size());
}

absl::Status GivenTensors::AddRange(const BoundTensor& tensor, uint64_t begin, uint64_t end) {
  absl::StatusOr<std::vector<layout::RangePart>> parts =
      layout::DivideRange(tensor.spec, begin, end);
  if (!parts.ok()) return parts.status();
  for (layout::RangePart& part : *parts) {
    BoundTensor& shard = shards.emplace_back(tensor);
    shard.spec.offset = std::move(part.box.offset);
    shard.spec.extent = std::move(part.box.extent);
    shard.data += part.begin * DtypeBytes(tensor.spec.dtype);
  }
  ends.push_back(shards.size());
  return absl::OkStatus();
}

std::vector<size_t> EachByItself(size_t tensors) {
  std::vector<size_t> ends(tensors);
  std::iota(ends.begin(), ends.end(), size_t{1});
  return ends;
}

}  // namespace unreft::snapshot
