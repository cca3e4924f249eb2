#include "base/plan_piece.h"

#include <algorithm>

namespace unreft {
namespace {

// Rows [first, first + rows) of a piece, without what does not belong to a single row.
PlanPiece RowsOf(const PlanPiece& piece, uint64_t first, uint64_t rows) {
  PlanPiece part = piece;
  part.source_offset += first * piece.source_pitch;
  part.target_offset += first * piece.target_pitch;
  part.rows = rows;
  if (rows == 1) part.source_pitch = part.target_pitch = 0;
  return part;
}

// One side of a piece.
bool SideFits(uint64_t offset, uint64_t pitch, const PlanPiece& piece, uint64_t size) {
  if (offset > size || piece.bytes > size - offset) return false;
  if (piece.rows == 1) return true;
  return pitch >= piece.bytes && piece.rows - 1 <= (size - offset - piece.bytes) / pitch;
}

// Rows of a target that are still to be looked at.
struct NextRow {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t rows = 0;
  uint64_t pitch = 0;
};

// What the pieces write. Columns side by side are one; as wide as their pitch they are one row. A
// matrix that was cut by columns is so, and need not be looked at row by row.
std::vector<NextRow> WithoutColumns(std::span<const PlanPiece> pieces) {
  std::vector<NextRow> columns;
  columns.reserve(pieces.size());
  for (const PlanPiece& piece : pieces) {
    columns.push_back({piece.target_offset, piece.bytes, piece.rows, piece.target_pitch});
  }
  std::ranges::sort(columns, {}, &NextRow::begin);
  size_t kept = 0;
  for (const NextRow& next : columns) {
    NextRow* const last = kept > 0 ? &columns[kept - 1] : nullptr;
    if (last == nullptr || last->rows != next.rows || last->pitch != next.pitch ||
        last->begin + last->bytes != next.begin) {
      columns[kept++] = next;
      continue;
    }
    last->bytes += next.bytes;
    if (last->bytes == last->pitch) *last = {last->begin, last->rows * last->pitch, 1, 0};
  }
  columns.resize(kept);
  return columns;
}

}  // namespace

bool PieceFits(const PlanPiece& piece, uint64_t source_bytes, uint64_t target_bytes) {
  return piece.rows > 0 && piece.bytes > 0 &&
         SideFits(piece.source_offset, piece.source_pitch, piece, source_bytes) &&
         SideFits(piece.target_offset, piece.target_pitch, piece, target_bytes);
}

void ClipToSource(const PlanPiece& piece, uint64_t begin, uint64_t end,
                  absl::FunctionRef<void(const PlanPiece&)> clipped) {
  begin = std::max(begin, piece.source_offset);
  end = std::min(end, piece.source_end());
  if (begin >= end) return;
  const uint64_t pitch = piece.rows == 1 ? piece.source_end() : piece.source_pitch;
  // The first and the last row that begin before `begin` and `end`.
  uint64_t first = (begin - piece.source_offset) / pitch;
  const uint64_t last = (end - 1 - piece.source_offset) / pitch;
  const auto clip_row = [&](uint64_t index) {
    PlanPiece row = RowsOf(piece, index, 1);
    const uint64_t from = std::max(begin, row.source_offset);
    const uint64_t to = std::min(end, row.source_offset + row.bytes);
    if (from >= to) return;
    row.target_offset += from - row.source_offset;
    row.source_offset = from;
    row.bytes = to - from;
    clipped(row);
  };
  const auto is_whole = [&](uint64_t index) {
    const uint64_t row_begin = piece.source_offset + index * piece.source_pitch;
    return begin <= row_begin && row_begin + piece.bytes <= end;
  };
  if (!is_whole(first)) clip_row(first++);
  if (first > last) return;
  const uint64_t whole = is_whole(last) ? last + 1 - first : last - first;
  if (whole > 0) clipped(RowsOf(piece, first, whole));
  if (first + whole <= last) clip_row(last);
}

void ForEachRowIn(
    const PlanPiece& piece, uint64_t begin, uint64_t end,
    absl::FunctionRef<void(uint64_t source_offset, uint64_t target_offset, uint64_t bytes)> row) {
  ClipToSource(piece, begin, end, [&](const PlanPiece& part) {
    for (uint64_t i = 0; i < part.rows; ++i) {
      row(part.source_offset + i * part.source_pitch, part.target_offset + i * part.target_pitch,
          part.bytes);
    }
  });
}

std::span<const PlanPiece> PiecesOf(std::span<const PlanPiece> pieces, uint32_t source) {
  const auto found = std::ranges::equal_range(pieces, source, {}, &PlanPiece::source);
  return {found.begin(), found.end()};
}

std::vector<uint64_t> BlocksOf(std::span<const PlanPiece> pieces, uint64_t block_bytes) {
  std::vector<uint64_t> blocks;
  const auto append = [&](uint64_t begin, uint64_t end) {
    const uint64_t last = (end - 1) / block_bytes;
    for (uint64_t block = begin / block_bytes; block <= last; ++block) {
      if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
    }
  };
  for (const PlanPiece& piece : pieces) {
    if (piece.source_pitch <= block_bytes) {  // no block fits between two rows
      append(piece.source_offset, piece.source_end());
      continue;
    }
    for (uint64_t row = 0; row < piece.rows; ++row) {
      const uint64_t begin = piece.source_offset + row * piece.source_pitch;
      append(begin, begin + piece.bytes);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

std::optional<CoverageFlaw> FindCoverageFlaw(std::span<const PlanPiece> pieces,
                                             uint64_t target_bytes, bool may_leave_out) {
  std::vector<NextRow> heap = WithoutColumns(pieces);
  const auto comes_later = [](const NextRow& a, const NextRow& b) { return a.begin > b.begin; };
  std::make_heap(heap.begin(), heap.end(), comes_later);
  uint64_t at = 0;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    NextRow& next = heap.back();
    if (next.begin < at) return CoverageFlaw{next.begin, true};
    if (next.begin > at && !may_leave_out) return CoverageFlaw{at, false};
    at = next.begin + next.bytes;
    if (--next.rows == 0) {
      heap.pop_back();
      continue;
    }
    next.begin += next.pitch;
    std::push_heap(heap.begin(), heap.end(), comes_later);
  }
  if (at < target_bytes && !may_leave_out) return CoverageFlaw{at, false};
  return std::nullopt;
}

}  // namespace unreft
