#include "base/crc32c.h"

#include <isa-l.h>

#include <algorithm>

namespace unreft {

uint32_t Crc32c(std::span<const std::byte> bytes) { return Crc32cExtend(0, bytes); }

uint32_t Crc32cExtend(uint32_t crc, std::span<const std::byte> bytes) {
  // ISA-L takes an int length, a mutable pointer that it only reads, and applies neither the
  // initial nor the final inversion.
  constexpr size_t kPieceBytesMax = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytesMax));
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data()));
    state = crc32_iscsi(data, static_cast<int>(piece.size()), state);
    bytes = bytes.subspan(piece.size());
  }
  return ~state;
}

}  // namespace unreft
