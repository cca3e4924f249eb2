// CRC32C (Castagnoli), the checksum of every block, header and frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unreft {

// The CRC32C of `bytes` (RFC 3720, appendix B.4: initial value and final xor of all ones).
uint32_t Crc32c(std::span<const std::byte> bytes);

// Continues: Crc32cExtend(Crc32c(a), b) == Crc32c(a followed by b).
uint32_t Crc32cExtend(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace unreft
