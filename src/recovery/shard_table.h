// ShardTable: in which boxes a tensor is cut, and where bytes of each box lie. Pure.
//
// Compact, since a tensor may be cut in ten thousand boxes and a model have a thousand tensors:
// plain numbers, of which the boxes' stand apart (64 bytes for a box of a matrix and its part).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "layout/box.h"

namespace unreft::recovery {

// Bytes [shard_begin, shard_end) of a shard, row-major, at `slab_offset` of a slab.
struct ShardPart {
  uint64_t shard_begin = 0;
  uint64_t shard_end = 0;
  uint64_t slab_offset = 0;
  uint32_t slab = 0;   // the caller's number of the slab
  uint32_t shard = 0;  // the number of its box in the table
};
static_assert(sizeof(ShardPart) == 32);

// Filled, then sorted once, then read: by several threads at once, if need be.
class ShardTable {
 public:
  // Of so many parts, if it has many at all: memory for more is taken only as it is needed.
  explicit ShardTable(size_t dimensions, size_t expected = 0)
      : dimensions_(dimensions), expected_(expected) {}

  // `part.shard` is set here.
  void Add(std::span<const uint64_t> offset, std::span<const uint64_t> extent, ShardPart part);
  // Has the processor fetch where that many parts will be added.
  void FetchEnds(size_t parts) const;
  bool empty() const { return parts_.empty(); }

  // Numbers each box once, in the order of their begins in the dimension that tells most of them
  // apart, and puts parts of a box together, by their begins.
  void Sort();

  // --- once it is sorted ---

  uint32_t shards() const { return shards_; }
  std::span<const uint64_t> OffsetOf(uint32_t shard) const { return Row(shard).first(dimensions_); }
  std::span<const uint64_t> ExtentOf(uint32_t shard) const { return Row(shard).last(dimensions_); }
  layout::Box BoxOf(uint32_t shard) const;
  std::span<const ShardPart> PartsOf(uint32_t shard) const;

  // [first, second): the shards that the box may have something in common with, and few others.
  std::pair<uint32_t, uint32_t> ShardsNear(const layout::Box& box) const;
  bool Overlaps(uint32_t shard, const layout::Box& box) const;
  // Two boxes that have an element in common; fails as layout::FindOverlap does.
  absl::StatusOr<std::optional<std::pair<layout::Box, layout::Box>>> FindOverlap() const;

 private:
  std::span<const uint64_t> Row(uint32_t shard) const {
    return std::span(rows_).subspan(shard * row_length(), row_length());
  }
  size_t row_length() const { return 2 * dimensions_; }
  size_t NextCapacity(size_t size) const;
  uint64_t BeginsIn(size_t dimension) const;
  bool IsBefore(uint32_t a, uint32_t b) const;
  std::vector<uint32_t> RowsInOrder() const;
  std::vector<uint32_t> SortRows();
  void SortParts(std::span<const uint32_t> shard_of_row);
  bool AreRowsApart() const;

  size_t dimensions_;
  size_t expected_;
  std::vector<ShardPart> parts_;
  std::vector<uint64_t> rows_;  // of each shard its offsets, then its extents
  uint32_t shards_ = 0;
  size_t dimension_ = 0;               // that they are sorted by first
  uint64_t longest_ = 0;               // of the shards, in that dimension
  std::vector<uint32_t> first_parts_;  // of each shard, and one past the last part
};

}  // namespace unreft::recovery
