#include "durable/checked_data.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/crc32c_combine.h"

namespace unreft::durable {

uint32_t CheckedPiece::ExtendCrc(uint32_t before) const {
  if (!crc) return Crc32cExtend(before, bytes);
  return crc32c::Append(before, *crc, crc32c::PowerOfBytes(bytes.size()));
}

absl::StatusOr<CheckedPiece> CheckedData::At(uint64_t offset, uint64_t bytes) {
  const uint64_t block = offset / block_bytes_;
  if (block_ != block) {
    block_ = kNone;
    const absl::StatusOr<uint32_t> crc = slab_.Read(block, buffer_);
    if (!crc.ok()) return crc.status();
    block_ = block;
    block_crc_ = *crc;
  }
  const uint64_t within = offset % block_bytes_;
  const auto piece =
      std::span<const std::byte>(buffer_).subspan(within, std::min(bytes, block_bytes_ - within));
  if (piece.size() == block_bytes_) return CheckedPiece{piece, block_crc_};
  return CheckedPiece{piece, std::nullopt};
}

absl::Status CheckedData::Read(uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto piece = At(offset, into.size());
    if (!piece.ok()) return piece.status();
    std::memcpy(into.data(), piece->bytes.data(), piece->bytes.size());
    offset += piece->bytes.size();
    into = into.subspan(piece->bytes.size());
  }
  return absl::OkStatus();
}

}  // namespace unreft::durable
