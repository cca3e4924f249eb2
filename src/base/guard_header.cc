#include "base/guard_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bounds.h"
#include "base/check.h"
#include "base/slot_header.h"

namespace unreft {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t ParityCrcBytes(const GuardGeometry& g) {
  return g.chunks * g.positions_max * sizeof(uint32_t);
}

uint64_t InputCrcBytes(const GuardGeometry& g) { return ParityCrcBytes(g) * g.sources_max; }

bool IsLaidOut(const GuardGeometry& g, uint64_t total) {
  constexpr uint64_t kLimit = uint64_t{1} << 40;
  constexpr uint64_t kParityLimit = uint64_t{1} << 56;  // bytes of a chunk
  // No product of these overflows.
  if (g.positions_max > std::min(kLimit, kParityLimit / g.block_bytes)) return false;
  if (g.chunks > 8 || g.sources_max > 32) return false;
  return g.record_offset == kSegmentPage && g.record_capacity <= kLimit &&
         g.parity_crc_offset == g.record_offset + g.record_capacity &&
         g.input_crc_offset == g.parity_crc_offset + RoundUp(ParityCrcBytes(g), kSegmentPage) &&
         g.parity_offset == g.input_crc_offset + RoundUp(InputCrcBytes(g), kSegmentPage) &&
         GuardSegmentBytes(g) <= total;
}

}  // namespace

GuardGeometry MakeGuardGeometry(uint64_t guard_id, uint32_t block_bytes, uint64_t record_bytes,
                                uint32_t chunks, uint32_t sources, uint64_t positions) {
  GuardGeometry g;
  g.guard_id = guard_id;
  g.block_bytes = block_bytes;
  g.chunks = chunks;
  g.sources_max = sources;
  g.positions_max = positions;
  g.record_offset = kSegmentPage;
  g.record_capacity = RoundUp(record_bytes, kSegmentPage);
  g.parity_crc_offset = g.record_offset + g.record_capacity;
  g.input_crc_offset = g.parity_crc_offset + RoundUp(ParityCrcBytes(g), kSegmentPage);
  g.parity_offset = g.input_crc_offset + RoundUp(InputCrcBytes(g), kSegmentPage);
  return g;
}

uint64_t GuardSegmentBytes(const GuardGeometry& g) {
  return g.parity_offset + g.chunks * g.positions_max * g.block_bytes;
}

absl::StatusOr<GuardView> GuardView::Check(std::span<std::byte> bytes) {
  if (bytes.size() < kSegmentPage) {
    return absl::DataLossError(
        fmt::format("guard segment: needed {} bytes, found {}", kSegmentPage, bytes.size()));
  }
  GuardView view(bytes);
  const GuardGeometry& g = view.geometry();
  if (g.magic != kGuardMagic) {
    return absl::DataLossError(
        fmt::format("guard header: needed magic {:016x}, found {:016x}", kGuardMagic, g.magic));
  }
  if (!BodyCrcIsRight(g)) return absl::DataLossError("guard header: geometry has a wrong CRC");
  if (g.min_reader > kGuardFormat) {
    return absl::FailedPreconditionError(fmt::format(
        "guard header: written in format {} for readers of {} and up, this reader knows {}",
        g.format, g.min_reader, kGuardFormat));
  }
  if (!std::has_single_bit(g.block_bytes) || !IsLaidOut(g, bytes.size())) {
    return absl::DataLossError(
        fmt::format("guard {}: its regions do not fit its {} bytes", g.guard_id, bytes.size()));
  }
  return view;
}

void GuardView::MendGeometry() {
  if (!BodyCrcIsRight(header_->geometry)) header_->geometry = geometry_;
}

absl::StatusOr<GuardGrant> GuardView::CheckedGrant() const {
  const GuardGrant grant = header_->grant;
  if (!BodyCrcIsRight(grant) || grant.generation != generation().value ||
      grant.positions > geometry_.positions_max || grant.sources > geometry_.sources_max) {
    return absl::DataLossError(
        fmt::format("guard {}: its grant is corrupt or of generation {}, needed {}",
                    geometry_.guard_id, grant.generation, generation().value));
  }
  if (grant.timeline > kTimelineMax || grant.step > kStepMax) {
    return absl::DataLossError(
        fmt::format("guard {}: its grant is of version {}:{}, the largest is {}:{}",
                    geometry_.guard_id, grant.timeline, grant.step, kTimelineMax, kStepMax));
  }
  return grant;
}

absl::StatusOr<GuardSeal> GuardView::CheckedSeal() const {
  const GuardSeal seal = header_->seal;
  if (!BodyCrcIsRight(seal) || seal.generation != generation().value ||
      seal.record_bytes > geometry_.record_capacity) {
    return absl::DataLossError(
        fmt::format("guard {}: its seal is corrupt or of generation {}, needed {}",
                    geometry_.guard_id, seal.generation, generation().value));
  }
  return seal;
}

std::span<std::byte> GuardView::parity_crc_table() {
  return bytes_.subspan(geometry_.parity_crc_offset, ParityCrcBytes(geometry_));
}

std::span<std::byte> GuardView::input_crc_table() {
  return bytes_.subspan(geometry_.input_crc_offset, InputCrcBytes(geometry_));
}

std::span<uint32_t> GuardView::parity_crcs(uint32_t chunk, uint64_t positions) {
  UNREFT_CHECK(chunk < geometry_.chunks && positions <= geometry_.positions_max);
  auto* table = reinterpret_cast<uint32_t*>(parity_crc_table().data());
  return {table + chunk * geometry_.positions_max, positions};
}

std::span<uint32_t> GuardView::input_crcs(uint32_t chunk, uint64_t position, uint32_t sources) {
  UNREFT_CHECK(chunk < geometry_.chunks && position < geometry_.positions_max &&
               sources <= geometry_.sources_max);
  auto* table = reinterpret_cast<uint32_t*>(input_crc_table().data());
  return {table + (chunk * geometry_.positions_max + position) * geometry_.sources_max, sources};
}

GuardView FormatGuard(std::span<std::byte> bytes, GuardGeometry geometry) {
  SetBodyCrc(geometry);
  std::memcpy(bytes.data(), &geometry, sizeof(geometry));
  GuardView view = *GuardView::Check(bytes);
  view.set_state(Generation{0}, GuardState::kEmpty);
  return view;
}

}  // namespace unreft
