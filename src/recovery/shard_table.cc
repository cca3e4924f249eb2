#include "recovery/shard_table.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <tuple>

#include "base/fetch_lines.h"

namespace unreft::recovery {
namespace {

using layout::Box;

// Begins are compared far more often than rows are looked at.
struct RowKey {
  uint64_t begin = 0;
  uint32_t row = 0;
};

}  // namespace

void ShardTable::Add(std::span<const uint64_t> offset, std::span<const uint64_t> extent,
                     ShardPart part) {
  // Replicas that captured parts of one shard often follow each other.
  const bool is_last = shards_ > 0 && std::ranges::equal(OffsetOf(shards_ - 1), offset) &&
                       std::ranges::equal(ExtentOf(shards_ - 1), extent);
  if (!is_last) {
    if (rows_.size() == rows_.capacity()) rows_.reserve(NextCapacity(shards_) * row_length());
    rows_.insert(rows_.end(), offset.begin(), offset.end());
    rows_.insert(rows_.end(), extent.begin(), extent.end());
    ++shards_;
  }
  part.shard = shards_ - 1;
  if (parts_.size() == parts_.capacity()) parts_.reserve(NextCapacity(parts_.size()));
  parts_.push_back(part);
}

void ShardTable::FetchEnds(size_t parts) const {
  const auto fetch = [](const auto& table, size_t begin, size_t length) {
    length = std::min(length, table.capacity() - begin);
    FetchLines(table.data() + begin, length * sizeof(table[0]));
  };
  fetch(parts_, parts_.size(), parts);
  // The first box is compared with the last one that is there.
  const size_t last = shards_ > 0 ? rows_.size() - row_length() : 0;
  fetch(rows_, last, (parts + 1) * row_length());
}

// In large steps, but not beyond what is expected: of a thousand tables that grow together, what
// each had before is freed between the others and of no use.
size_t ShardTable::NextCapacity(size_t size) const {
  if (size < expected_) return std::min(std::max<size_t>(8 * size, 4), expected_);
  return std::max<size_t>(2 * size, 4);
}

Box ShardTable::BoxOf(uint32_t shard) const {
  const auto offset = OffsetOf(shard);
  const auto extent = ExtentOf(shard);
  return {{offset.begin(), offset.end()}, {extent.begin(), extent.end()}};
}

std::span<const ShardPart> ShardTable::PartsOf(uint32_t shard) const {
  return std::span(parts_).subspan(first_parts_[shard],
                                   first_parts_[shard + 1] - first_parts_[shard]);
}

// --- sorting ---

void ShardTable::Sort() {
  uint64_t most = 0;
  for (size_t d = 0; d < dimensions_; ++d) {
    if (const uint64_t begins = BeginsIn(d); begins > most) {
      most = begins;
      dimension_ = d;
    }
  }
  SortParts(SortRows());
  for (uint32_t shard = 0; dimensions_ > 0 && shard < shards_; ++shard) {
    longest_ = std::max(longest_, ExtentOf(shard)[dimension_]);
  }
}

// How many there are, each once.
uint64_t ShardTable::BeginsIn(size_t dimension) const {
  std::vector<uint64_t> begins(shards_);
  for (uint32_t row = 0; row < shards_; ++row) begins[row] = OffsetOf(row)[dimension];
  if (!std::ranges::is_sorted(begins)) std::ranges::sort(begins);
  return static_cast<uint64_t>(std::ranges::unique(begins).begin() - begins.begin());
}

bool ShardTable::IsBefore(uint32_t a, uint32_t b) const {
  if (dimensions_ == 0) return false;
  const uint64_t a_begin = OffsetOf(a)[dimension_];
  const uint64_t b_begin = OffsetOf(b)[dimension_];
  if (a_begin != b_begin) return a_begin < b_begin;
  return std::ranges::lexicographical_compare(Row(a), Row(b));
}

std::vector<uint32_t> ShardTable::RowsInOrder() const {
  std::vector<uint32_t> order(shards_);
  std::iota(order.begin(), order.end(), 0);
  const auto is_before = [this](uint32_t a, uint32_t b) { return IsBefore(a, b); };
  if (std::ranges::is_sorted(order, is_before)) return order;
  std::vector<RowKey> keys(shards_);
  for (uint32_t row = 0; row < shards_; ++row) keys[row] = {OffsetOf(row)[dimension_], row};
  std::ranges::sort(keys, [this](const RowKey& a, const RowKey& b) {
    return a.begin != b.begin ? a.begin < b.begin : IsBefore(a.row, b.row);
  });
  std::ranges::transform(keys, order.begin(), &RowKey::row);
  return order;
}

// Returns the number of each row's shard.
std::vector<uint32_t> ShardTable::SortRows() {
  const std::vector<uint32_t> order = RowsInOrder();
  std::vector<uint32_t> shard_of_row(shards_);
  std::vector<uint64_t> sorted;
  sorted.reserve(rows_.size());
  uint32_t shards = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || !std::ranges::equal(Row(order[i - 1]), Row(order[i]))) {
      const auto row = Row(order[i]);
      sorted.insert(sorted.end(), row.begin(), row.end());
      ++shards;
    }
    shard_of_row[order[i]] = shards - 1;
  }
  sorted.shrink_to_fit();
  rows_ = std::move(sorted);
  shards_ = shards;
  return shard_of_row;
}

void ShardTable::SortParts(std::span<const uint32_t> shard_of_row) {
  first_parts_.assign(size_t{shards_} + 1, 0);
  for (ShardPart& part : parts_) {
    part.shard = shard_of_row[part.shard];
    ++first_parts_[part.shard + 1];
  }
  std::partial_sum(first_parts_.begin(), first_parts_.end(), first_parts_.begin());
  std::vector<ShardPart> sorted(parts_.size());
  std::vector<uint32_t> next(first_parts_.begin(), first_parts_.end() - 1);
  for (const ShardPart& part : parts_) sorted[next[part.shard]++] = part;
  parts_ = std::move(sorted);
  const auto key = [](const ShardPart& part) {
    return std::tie(part.shard, part.shard_begin, part.slab, part.slab_offset);
  };
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    const std::span of_shard =
        std::span(parts_).subspan(first_parts_[shard], PartsOf(shard).size());
    if (!std::ranges::is_sorted(of_shard, {}, key)) std::ranges::sort(of_shard, {}, key);
  }
}

// --- looking ---

std::pair<uint32_t, uint32_t> ShardTable::ShardsNear(const Box& box) const {
  if (dimensions_ == 0) return {0, shards_};
  const uint64_t begin = box.offset[dimension_];
  const auto first_from = [this](uint64_t at) {
    const auto all = std::views::iota(uint32_t{0}, shards_);
    return *std::ranges::lower_bound(
        all, at, {}, [this](uint32_t shard) { return OffsetOf(shard)[dimension_]; });
  };
  return {first_from(begin - std::min(begin, longest_ - 1)),
          first_from(begin + box.extent[dimension_])};
}

bool ShardTable::Overlaps(uint32_t shard, const Box& box) const {
  const auto offset = OffsetOf(shard);
  const auto extent = ExtentOf(shard);
  for (size_t d = 0; d < dimensions_; ++d) {
    if (offset[d] + extent[d] <= box.offset[d] || box.offset[d] + box.extent[d] <= offset[d]) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<std::optional<std::pair<Box, Box>>> ShardTable::FindOverlap() const {
  if (AreRowsApart()) return std::nullopt;
  // Which two are found depends on the order.
  std::vector<Box> boxes;
  for (uint32_t shard = 0; shard < shards_; ++shard) boxes.push_back(BoxOf(shard));
  std::ranges::sort(boxes, {}, [](const Box& box) { return std::tie(box.offset, box.extent); });
  const auto found = layout::FindOverlap(boxes);
  if (!found.ok()) return found.status();
  if (!*found) return std::nullopt;
  return std::pair(boxes[(**found).first], boxes[(**found).second]);
}

// In one pass over the sorted rows, for shards that are cut in stripes, those in stripes of another
// dimension, and so on, as grids are. False of others, though they may be apart.
//
// The rows are in the order of their begins in one dimension after the other. Where two that follow
// each other have other begins first, the second is apart from all that have the same begins before
// that dimension if they end there by then. From the rest the shards with those begins are apart.
bool ShardTable::AreRowsApart() const {
  if (shards_ < 2) return true;
  std::vector<size_t> order = {dimension_};
  for (size_t d = 0; d < dimensions_; ++d) {
    if (d != dimension_) order.push_back(d);
  }
  std::vector<uint64_t> ends(dimensions_, 0);  // by place in `order`: the last one
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    const auto offset = OffsetOf(shard);
    const auto extent = ExtentOf(shard);
    size_t first = 0;  // dimension whose begin is another than the shard before has
    if (shard > 0) {
      const auto before = OffsetOf(shard - 1);
      while (first < dimensions_ && before[order[first]] == offset[order[first]]) ++first;
      if (first == dimensions_ || ends[first] > offset[order[first]]) return false;
    }
    for (size_t i = 0; i < dimensions_; ++i) {
      const uint64_t end = offset[order[i]] + extent[order[i]];
      ends[i] = i <= first ? std::max(ends[i], end) : end;
    }
  }
  return true;
}

}  // namespace unreft::recovery
