#include "smp/restore/earlier_library.h"

#include <fmt/format.h>

namespace unreft::smp {
namespace {

constexpr uint64_t kRowsMax = 2'000'000;  // that one frame holds

}  // namespace

absl::Status NameRows(std::span<const PlanSource> sources, std::span<const PlanPiece> pieces,
                      Plan& plan) {
  uint64_t rows = 0;
  for (const PlanPiece& piece : pieces) rows += piece.rows;
  if (rows > kRowsMax) {
    return absl::ResourceExhaustedError(fmt::format(
        "its library is of an earlier release, which takes a plan of at most {} rows; this one has "
        "{}: start the trainers with the library of this daemon's release",
        kRowsMax, rows));
  }
  std::vector<uint32_t> slot_of_source;
  for (const PlanSource& source : sources) {
    slot_of_source.push_back(static_cast<uint32_t>(plan.slots.size()));
    if (!source.is_staged()) plan.slots.push_back(source.slot);
  }
  for (const PlanPiece& piece : pieces) {
    if (sources[piece.source].is_staged()) continue;
    ForEachRowIn(piece, 0, UINT64_MAX, [&](uint64_t source, uint64_t target, uint64_t bytes) {
      plan.pieces.push_back({slot_of_source[piece.source], piece.target, source, target, bytes});
    });
  }
  return absl::OkStatus();
}

std::map<uint64_t, std::vector<WirePiece>> RowsByBlock(std::span<const PlanPiece> pieces,
                                                       uint64_t block_bytes) {
  std::map<uint64_t, std::vector<WirePiece>> rows;
  for (const PlanPiece& piece : pieces) {
    for (const uint64_t block : BlocksOf({&piece, 1}, block_bytes)) {
      const uint64_t begin = block * block_bytes;
      ForEachRowIn(piece, begin, begin + block_bytes,
                   [&](uint64_t source, uint64_t target, uint64_t bytes) {
                     rows[block].push_back({0, piece.target, source - begin, target, bytes});
                   });
    }
  }
  return rows;
}

}  // namespace unreft::smp
