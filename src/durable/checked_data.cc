#include "durable/checked_data.h"

#include <algorithm>
#include <cstring>

namespace unreft::durable {

absl::StatusOr<std::span<const std::byte>> CheckedData::At(uint64_t offset, uint64_t bytes) {
  const uint64_t block = offset / block_bytes_;
  if (block_ != block) {
    block_ = kNone;
    if (absl::Status status = slab_.Read(block, buffer_); !status.ok()) return status;
    block_ = block;
  }
  const uint64_t within = offset % block_bytes_;
  return std::span<const std::byte>(buffer_).subspan(within,
                                                     std::min(bytes, block_bytes_ - within));
}

absl::Status CheckedData::Read(uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto piece = At(offset, into.size());
    if (!piece.ok()) return piece.status();
    std::memcpy(into.data(), piece->data(), piece->size());
    offset += piece->size();
    into = into.subspan(piece->size());
  }
  return absl::OkStatus();
}

}  // namespace unreft::durable
