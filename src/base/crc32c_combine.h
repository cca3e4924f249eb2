// CRC32C of bytes that were checksummed in parts: by the mathematics of the code, without the
// bytes.
//
// A CRC is a polynomial over GF(2) modulo that of the code, and bytes that follow multiply it by
// x^(8 * their number): the method of zlib's crc32_combine. Bits are reflected, as in the CRC:
// 0x80000000 is 1, 0x40000000 is x. Constexpr, so that tables are made of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace unreft::crc32c {

inline constexpr uint32_t kPolynomial = 0x82f63b78;
inline constexpr uint32_t kOne = 0x80000000;
// x to this power is 1: the polynomial is (x + 1) times a primitive one of degree 31.
inline constexpr uint64_t kOrder = 0x7fffffff;

// a * b.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    product ^= (a & kOne) != 0 ? b : 0;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^(2^n), which repeat after 31.
inline constexpr std::array<uint32_t, 31> kSquares = [] {
  std::array<uint32_t, 31> squares{};
  squares[0] = kOne >> 1;
  for (size_t n = 1; n < squares.size(); ++n) squares[n] = Multiply(squares[n - 1], squares[n - 1]);
  return squares;
}();

// x^(8 * bytes).
constexpr uint32_t PowerOfBytes(uint64_t bytes) {
  uint32_t power = kOne;
  for (size_t n = 3; bytes != 0; ++n, bytes >>= 1) {
    if ((bytes & 1) != 0) power = Multiply(power, kSquares[n % kSquares.size()]);
  }
  return power;
}

// x^(-8 * bytes), of at most kOrder / 8 bytes.
constexpr uint32_t InverseOfBytes(uint64_t bytes) {
  uint32_t power = kOne;
  uint64_t exponent = kOrder - 8 * bytes;
  for (size_t n = 0; exponent != 0; ++n, exponent >>= 1) {
    if ((exponent & 1) != 0) power = Multiply(power, kSquares[n]);
  }
  return power;
}

// The CRC32C of bytes that are all zero.
constexpr uint32_t OfZeros(uint64_t bytes) { return ~Multiply(~0U, PowerOfBytes(bytes)); }

// The CRC32C of a followed by b is Append(crc of a, crc of b, PowerOfBytes(bytes of b)).
constexpr uint32_t Append(uint32_t crc, uint32_t next, uint32_t power_of_next) {
  return Multiply(crc, power_of_next) ^ next;
}

}  // namespace unreft::crc32c
