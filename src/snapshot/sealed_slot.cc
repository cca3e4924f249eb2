#include "snapshot/sealed_slot.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/crc32c_combine.h"
#include "snapshot/stream_copy.h"

namespace unreft::snapshot {
namespace {

// Returns the CRC of the whole block.
uint32_t CopyParts(std::span<const std::byte> block, std::span<SealedSlot::Part> parts) {
  uint32_t crc = 0;
  uint64_t at = 0;
  for (SealedSlot::Part& part : parts) {
    UNREFT_CHECK(part.offset >= at && part.offset <= block.size() &&
                     part.bytes <= block.size() - part.offset,
                 "a part of {} bytes at {} of a block of {}, after one that ends at {}", part.bytes,
                 part.offset, block.size(), at);
    crc = Crc32cExtend(crc, block.subspan(at, part.offset - at));
    const uint32_t before = crc;
    crc = StreamCopyCrc32c(crc, part.target, block.data() + part.offset, part.bytes);
    // What the bytes before it do to the checksum is taken out of it again.
    if (part.wants_crc) {
      part.crc = crc32c::Append(before, crc, crc32c::PowerOfBytes(part.bytes));
    }
    at = part.offset + part.bytes;
  }
  if (!parts.empty()) StreamFence();
  return Crc32cExtend(crc, block.subspan(at));
}

bool SameBodies(const SlotHeader& a, const SlotHeader& b) {
  return std::memcmp(&a, &b, offsetof(SlotHeader, state)) == 0;
}

}  // namespace

absl::StatusOr<SealedSlot> SealedSlot::Open(SegmentStore& store, const WireSlot& where) {
  SealedSlot slot;
  slot.where_ = where;
  absl::StatusOr<std::unique_ptr<Segment>> segment = store.Open(where.segment, Access::kReadOnly);
  if (!segment.ok()) return segment.status();
  slot.segment_ = *std::move(segment);
  absl::StatusOr<SlotView> view = SlotView::Check(slot.segment_->bytes());
  if (!view.ok()) return view.status();
  slot.view_ = std::make_unique<SlotView>(*view);
  if (absl::Status status = slot.StillThere(); !status.ok()) return status;
  if (absl::Status status = slot.LoadSeal(); !status.ok()) return status;
  if (absl::Status status = slot.LoadCrcTable(); !status.ok()) return status;
  return slot;
}

bool SealedSlot::ReadFrom(std::shared_ptr<Segment> mapping) {
  absl::StatusOr<SlotView> view = SlotView::Check(mapping->bytes());
  if (!view.ok() || !SameBodies(view->header(), view_->header())) return false;
  *view_ = *view;
  segment_ = std::move(mapping);
  return true;
}

absl::Status SealedSlot::StillThere() const {
  const SlotStateWord state = view_->state();
  if (state.generation == where_.generation && state.state == SlotState::kSealed) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      fmt::format("segment {}: what was to be restored is no longer there, needed generation {} "
                  "sealed, found generation {} {}; another attempt may have begun: start the job "
                  "again",
                  where_.segment, where_.generation, state.generation, SlotStateName(state.state)));
}

absl::Status SealedSlot::LoadSeal() {
  if (absl::StatusOr<SlotGrant> grant = view_->CheckedGrant(); !grant.ok()) return grant.status();
  absl::StatusOr<SlotSeal> seal = view_->CheckedSeal();
  if (!seal.ok()) return seal.status();
  seal_ = *seal;
  return absl::OkStatus();
}

absl::Status SealedSlot::LoadCrcTable() {
  const uint64_t count = BlockCount(seal_.data_bytes, block_bytes());
  const std::span<std::byte> table = view_->crc_table();
  if (count * block_bytes() > view_->geometry().data_capacity ||
      count * sizeof(uint32_t) > table.size()) {
    return absl::DataLossError(fmt::format(
        "segment {}: its version has {} blocks of {} bytes, it has room for {}", where_.segment,
        count, block_bytes(), view_->geometry().data_capacity / block_bytes()));
  }
  crc_table_.resize(count);
  if (count > 0) std::memcpy(crc_table_.data(), table.data(), count * sizeof(uint32_t));
  const uint32_t found = Crc32c(std::as_bytes(std::span(crc_table_)));
  if (found == seal_.crc_table_crc) return absl::OkStatus();
  return absl::DataLossError(fmt::format("segment {}: its CRC table needs CRC {:08x}, found {:08x}",
                                         where_.segment, seal_.crc_table_crc, found));
}

absl::StatusOr<std::span<const std::byte>> SealedSlot::Block(uint64_t index,
                                                             std::span<Part> parts) const {
  const std::span<const std::byte> block = view_->block(index);
  const uint32_t found = CopyParts(block, parts);
  if (found == crc_table_[index]) return block;
  return absl::DataLossError(fmt::format("segment {}: block {} needs CRC {:08x}, found {:08x}",
                                         where_.segment, index, crc_table_[index], found));
}

absl::StatusOr<std::vector<std::byte>> SealedSlot::Extras() const {
  const std::span<const std::byte> region = view_->extras().first(seal_.extras_bytes);
  std::vector<std::byte> extras(region.begin(), region.end());
  const uint32_t found = Crc32c(extras);
  if (found == seal_.extras_crc) return extras;
  return absl::DataLossError(
      fmt::format("segment {}: its {} bytes of extras need CRC {:08x}, found {:08x}",
                  where_.segment, seal_.extras_bytes, seal_.extras_crc, found));
}

}  // namespace unreft::snapshot
