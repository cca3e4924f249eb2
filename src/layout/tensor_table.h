// TensorTable: the tensors that one rank registered, checked. Pure; immutable.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::layout {

inline constexpr size_t kNameBytesMax = 1024;
inline constexpr size_t kDimensionsMax = 16;
inline constexpr size_t kShardsMax = size_t{1} << 18;  // of a rank
inline constexpr uint64_t kShardBytesLimit = uint64_t{1} << 62;

// InvalidArgument, naming the tensor and the numbers, for: a name that is empty, over-long or not
// UTF-8, an unknown dtype, shape, offset and extent of different rank or of too many dimensions, a
// zero extent, a box outside the global shape, a shard of kShardBytesLimit or more, a replica index
// not below its count.
absl::Status CheckTensorSpec(const TensorSpec& spec);

class TensorTable {
 public:
  // InvalidArgument, naming the tensor and the numbers, for what CheckTensorSpec refuses, two specs
  // of one name whose boxes overlap or whose dtype, global shape or replica count differ, and
  // shards of kShardBytesLimit or more together. ResourceExhausted for more than kShardsMax shards,
  // and for boxes that FindOverlap gives up on.
  static absl::StatusOr<TensorTable> Create(std::vector<TensorSpec> specs);

  TensorTable() = default;  // of no tensors

  std::span<const TensorSpec> specs() const { return specs_; }
  size_t size() const { return specs_.size(); }

  // Of names, dtypes, shapes, boxes, replica indices and counts: what CheckWorld found of tables of
  // these digests holds until one of them changes.
  uint64_t digest() const { return digest_; }

  friend bool operator==(const TensorTable&, const TensorTable&) = default;

 private:
  std::vector<TensorSpec> specs_;
  uint64_t digest_ = 0;
};

// Checks the tables of all ranks of an attempt, in the order of ranks, against each other:
// FailedPrecondition, naming tensor, ranks and numbers, when dtype or global shape of one name
// differ, when boxes overlap without being replicas of each other, when a box is held by another
// number of ranks than its replica count or two ranks have the same replica index of it, or when
// the shards of a tensor do not cover it.
absl::Status CheckWorld(std::span<const TensorTable> tables);

}  // namespace unreft::layout
