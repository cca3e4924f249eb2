// CapturePlan: which bytes of its tensors a rank captures, and where in its slab they lie. Pure.
//
// Of d replicas each captures 1/d (docs/protocol.md, rule 13): the part depends only on the rank's
// own (shard, replica index, d), so that trainer and daemon compute the same plan without a
// message.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "layout/tensor_table.h"

namespace unreft::layout {

// Persistent numbers.
enum class CaptureMode : uint8_t {
  kSharded = 1,  // of d replicas each captures 1/d
  kFull = 2,     // every rank captures all it holds: replicas disagree, or local restart is wanted
};

// A contiguous byte range of one shard, row-major.
struct CapturedPart {
  uint32_t tensor = 0;       // index in the table
  uint64_t shard_begin = 0;  // bytes from the beginning of the shard; a multiple of the element
  uint64_t bytes = 0;        // not zero
  uint64_t slab_offset = 0;  // a multiple of kPartAlignment
  friend bool operator==(const CapturedPart&, const CapturedPart&) = default;
};

inline constexpr uint64_t kPartAlignment = 64;
// Shards below this are not cut: one of the replicas, drawn by the tensor's name, captures all. Not
// by its place in the table, which may differ from rank to rank.
inline constexpr uint64_t kSmallShardBytes = 4096;

class CapturePlan {
 public:
  static CapturePlan Make(const TensorTable& table, CaptureMode mode);

  CapturePlan() = default;

  // In the order of the slab; parts do not overlap. A tensor of which this rank captures nothing
  // has none.
  std::span<const CapturedPart> parts() const { return parts_; }
  uint64_t data_bytes() const { return data_bytes_; }  // of the slab: where its last part ends
  CaptureMode mode() const { return mode_; }
  // Of table, mode and how plans are made.
  uint64_t digest() const { return digest_; }

 private:
  std::vector<CapturedPart> parts_;
  uint64_t data_bytes_ = 0;
  CaptureMode mode_ = CaptureMode::kSharded;
  uint64_t digest_ = 0;
};

// [begin, end)
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// What replica `index` of `count` captures of a shard of `shard_bytes`; the ranges of all indices
// are disjoint and cover the shard. Cut at multiples of kPartAlignment.
ByteRange ReplicaPart(uint64_t shard_bytes, uint32_t index, uint32_t count, std::string_view name);

}  // namespace unreft::layout
