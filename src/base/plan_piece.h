// PlanPiece: what one step of a restore copies, rows of equal length that lie at equal distances.
// Pure.
//
// A row of one box is seldom a row of another, so a copy row by row has as many steps as the tensor
// has rows. With a pitch on both sides (as cudaMemcpy2D has) it has one for each pair of boxes.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unreft {

// Row i, of `bytes`, goes from source_offset + i * source_pitch of a source to target_offset + i *
// target_pitch of a target. All in bytes.
struct PlanPiece {
  uint32_t source = 0;
  uint32_t target = 0;
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;  // of a row
  uint64_t rows = 1;
  uint64_t source_pitch = 0;  // from a row's begin to the next one's; 0 for a single row
  uint64_t target_pitch = 0;

  void Fields(auto& wire) {
    wire(source, target, source_offset, target_offset, bytes, rows, source_pitch, target_pitch);
  }
  uint64_t total_bytes() const { return rows * bytes; }
  // One past its last byte. For a piece that is known to fit.
  uint64_t source_end() const { return source_offset + (rows - 1) * source_pitch + bytes; }
  friend bool operator==(const PlanPiece&, const PlanPiece&) = default;
};

// Of one plan. A target has as many pieces as stored boxes that it shares bytes with, and more only
// where boxes are cut in several dimensions, or captured in parts by replicas.
inline constexpr uint64_t kPlanPiecesMax = 2'000'000;

// Whether it has a row and bytes, its rows are apart on both sides, and all of them lie within a
// source and a target of so many bytes. True of no piece with which the functions below would
// overflow.
bool PieceFits(const PlanPiece& piece, uint64_t source_bytes, uint64_t target_bytes);

// What of a piece lies in [begin, end) of the source: at most three pieces, in order.
void ClipToSource(const PlanPiece& piece, uint64_t begin, uint64_t end,
                  absl::FunctionRef<void(const PlanPiece&)> clipped);

// The same row by row.
void ForEachRowIn(
    const PlanPiece& piece, uint64_t begin, uint64_t end,
    absl::FunctionRef<void(uint64_t source_offset, uint64_t target_offset, uint64_t bytes)> row);

// Those of the source, of pieces that are in the order of their sources.
std::span<const PlanPiece> PiecesOf(std::span<const PlanPiece> pieces, uint32_t source);

// The numbers of the blocks that pieces of one source lie in, ascending.
std::vector<uint64_t> BlocksOf(std::span<const PlanPiece> pieces, uint64_t block_bytes);

// A byte of a target that no piece writes, or that two do.
struct CoverageFlaw {
  uint64_t at = 0;
  bool is_written_twice = false;
};

// The first of the flaws of pieces of one target of so many bytes, all of which fit. None: they
// write every byte exactly once, or at most once if they `may_leave_out` some. O(rows log pieces),
// where columns do not fill rows.
std::optional<CoverageFlaw> FindCoverageFlaw(std::span<const PlanPiece> pieces,
                                             uint64_t target_bytes, bool may_leave_out = false);

}  // namespace unreft
