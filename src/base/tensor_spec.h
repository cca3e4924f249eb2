// TensorSpec: what a rank says of one tensor that it holds. Plain data; src/layout reasons about
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unreft {

// Element types. The numbers are persistent (manifest, session frames, C ABI) and never reused.
enum class Dtype : uint8_t {
  kBool = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kFloat16 = 7,
  kBfloat16 = 8,
  kFloat32 = 9,
  kFloat64 = 10,
  kFloat8E4m3 = 11,
  kFloat8E5m2 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kUint16 = 15,
  kUint32 = 16,
  kUint64 = 17,
};

// Bytes of one element; 0 for a number that names no type.
uint32_t DtypeBytes(Dtype dtype);
// "float32"; "dtype 99" for a number that names no type.
std::string DtypeName(Dtype dtype);

// The shard of one logical tensor that a rank holds: the box [offset, offset + extent) of a tensor
// of shape `global_shape`, row-major and dense. A scalar has no dimensions.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> global_shape;
  std::vector<uint64_t> offset;  // in elements, one per dimension
  std::vector<uint64_t> extent;  // in elements, one per dimension, none zero
  // The same box is held by `replica_count` ranks with equal bytes; this rank is the
  // `replica_index`-th of them.
  uint32_t replica_index = 0;
  uint32_t replica_count = 1;
  // Changes outside the optimizer step, so it is copied before Snapshot returns.
  bool is_volatile = false;
  // Of what is restored into: what is stored may have another global shape, and what both have in
  // common is restored. Not of what is stored.
  bool allow_shape_mismatch = false;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Elements and bytes of the shard. The shape has been checked (layout::TensorTable::Create).
uint64_t ShardElements(const TensorSpec& spec);
uint64_t ShardBytes(const TensorSpec& spec);

}  // namespace unreft
