// StoredTables: what the slabs of a version hold of each tensor, put together from the tables of
// all ranks that saved it. Made once; any number of ranks are planned for by it. Pure.
//
// Filled by one thread, then read by any number at once.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "base/tensor_spec.h"
#include "layout/capture_plan.h"
#include "recovery/shard_table.h"

namespace unreft::recovery {

// Bytes [shard_begin, shard_begin + bytes) of a shard, row-major, at `slab_offset` of a slab. From
// a manifest that has been checked (layout::DecodeManifest): the spec is valid, the bytes lie in
// it.
struct StoredPart {
  const TensorSpec* spec = nullptr;  // of the shard
  uint32_t slab = 0;                 // the caller's number of the slab
  uint64_t shard_begin = 0;
  uint64_t bytes = 0;
  uint64_t slab_offset = 0;
};

// What is stored under one name.
class StoredTensor {
 public:
  // `like` is any shard of it.
  explicit StoredTensor(const TensorSpec& like) : like_(like), shards_(like.global_shape.size()) {}

  void Add(const StoredPart& part);

  const TensorSpec& like() const { return like_; }
  // Sorted when somebody asks first, since hardly ever all tensors are asked for.
  // FailedPrecondition when dtype or global shape of the parts differ, or when boxes overlap
  // without being equal; ResourceExhausted when finding out would take too long.
  absl::StatusOr<const ShardTable*> Shards() const;

 private:
  struct Other {  // a part of another kind than `like_`
    TensorSpec spec;
    uint32_t slab = 0;
    uint64_t slab_offset = 0;
  };

  absl::Status CheckKinds() const;
  absl::Status CheckApart() const;

  TensorSpec like_;
  std::vector<Other> others_;
  mutable std::once_flag sorted_;  // and checked
  mutable ShardTable shards_;
  mutable absl::Status status_;
};

class StoredTables {
 public:
  void Add(const StoredPart& part);
  // All parts of the slab of that number.
  void AddSlab(uint32_t slab, std::span<const TensorSpec> specs,
               std::span<const layout::CapturedPart> parts);

  // Null if no part of it is stored.
  const StoredTensor* Find(std::string_view name) const;
  // In the order in which they were added.
  const std::deque<StoredTensor>& tensors() const { return tensors_; }

 private:
  StoredTensor& TensorOf(const TensorSpec& spec);

  std::deque<StoredTensor> tensors_;
  absl::flat_hash_map<std::string_view, StoredTensor*> by_name_;  // their names lie in `tensors_`
  // Of the parts of the slab that was added last: most slabs have parts of the same in one order.
  std::vector<StoredTensor*> last_;
};

}  // namespace unreft::recovery
