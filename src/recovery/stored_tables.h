// StoredTables: what the slabs of a version hold of each tensor, put together from the tables of
// all ranks that saved it; of all tensors, or in the boxes alone that are wanted. Pure.
//
// Filled by one thread, then read by any number at once.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensor_spec.h"
#include "layout/capture_plan.h"
#include "layout/tensor_view.h"
#include "recovery/shard_table.h"
#include "recovery/wanted_boxes.h"

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

// What the manifest of a slab says of it: the shards that its rank held, and all parts of it.
struct StoredSlab {
  uint32_t slab = 0;  // as of StoredPart
  std::span<const layout::TensorView> shards;
  std::span<const layout::CapturedPart> parts;
};

// What is stored under one name.
class StoredTensor {
 public:
  // Of which shards the parts are kept.
  struct Wanted {
    bool is_any = true;
    std::optional<layout::Box> box;  // those alone that have something in common with it
  };

  // `like` is any shard of it; of large ones so many parts are expected.
  StoredTensor(TensorSpec like, size_t expected, Wanted wanted)
      : like_(std::move(like)),
        expected_(expected),
        wanted_(std::move(wanted)),
        shards_(like_.global_shape.size(), expected) {}

  // `shard` is the one of that number that the slab's rank held.
  void AddHolder(const layout::TensorView& shard, uint32_t slab, uint32_t number);
  // `part` is of the shard.
  void Add(const layout::TensorView& shard, const ShardPart& part);
  // Has the processor fetch what AddHolder and Add look at: this, and a while later what this
  // refers to, of which only the end is written, by so many parts.
  void FetchSelf() const;
  void FetchEnds(size_t parts) const;

  bool empty() const { return lowest_ == kNoSlab; }
  // The first holder: the lowest slab, and the number in it.
  std::pair<uint32_t, uint32_t> first() const { return first_; }
  // As the first holder has it, but for the box.
  const TensorSpec& like() const { return like_; }
  // Those that are wanted. Sorted when somebody asks first, since hardly ever all tensors are asked
  // for.
  // FailedPrecondition when dtype or global shape of the parts differ, or when boxes overlap
  // without being equal; ResourceExhausted when finding out would take too long.
  absl::StatusOr<const ShardTable*> Shards() const;

 private:
  static constexpr uint32_t kNoSlab = UINT32_MAX;

  struct Other {  // a shard of another kind than `like_`
    TensorSpec spec;
    uint32_t slab = 0;
  };

  bool IsLike(const layout::TensorView& shard) const;
  bool IsWanted(const layout::TensorView& shard) const;
  void BeLike(const layout::TensorView& shard);
  absl::Status CheckKinds() const;
  absl::Status CheckApart() const;

  TensorSpec like_;
  size_t expected_;
  Wanted wanted_;
  std::pair<uint32_t, uint32_t> first_ = {kNoSlab, UINT32_MAX};
  uint32_t lowest_ = kNoSlab;  // that holds parts of a shard like `like_`
  std::vector<Other> others_;
  mutable std::once_flag sorted_;  // and checked
  mutable ShardTable shards_;
  mutable absl::Status status_;
};

class StoredTables {
 public:
  StoredTables() = default;
  // For that many slabs, or more; of shards that nobody wants no parts are kept.
  explicit StoredTables(size_t slabs, std::optional<WantedBoxes> wanted = std::nullopt)
      : expected_(slabs), wanted_(std::move(wanted)) {}

  void Add(const StoredPart& part);
  // One after the other. The ranks of a node are added together: while they hold the same tensors
  // in one order, as they mostly do, each tensor is looked up and brought into the cache once.
  void AddSlabs(std::span<const StoredSlab> slabs);
  // One alone.
  void AddSlab(uint32_t slab, std::span<const TensorSpec> shards,
               std::span<const layout::CapturedPart> parts);

  // Whether they have what plans of these need: all parts, or none because nobody stored any.
  bool Cover(std::span<const TensorSpec> targets) const;
  // Null if no part of it is stored.
  const StoredTensor* Find(std::string_view name) const;
  // All that any rank held, in the order of their first holders.
  std::vector<const StoredTensor*> InOrder() const;

 private:
  StoredTensor& TensorOf(const layout::TensorView& shard);
  StoredTensor::Wanted WantedOf(std::string_view name) const;
  void FindTensors(std::span<const layout::TensorView> shards);
  size_t CountAlike(std::span<const StoredSlab> slabs) const;
  void AddAlike(std::span<const StoredSlab> slabs);
  void AddApart(const StoredSlab& slab);

  size_t expected_ = 0;
  std::optional<WantedBoxes> wanted_;
  std::deque<StoredTensor> tensors_;
  absl::flat_hash_map<std::string_view, StoredTensor*> by_name_;  // their names lie in `tensors_`
  // Of the shards of the slab that was added last: most ranks hold the same, in one order.
  std::vector<StoredTensor*> last_;
  bool is_each_once_ = true;  // in `last_`
};

}  // namespace unreft::recovery
