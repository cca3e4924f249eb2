// What one lane of a warp does for the CRC32C of a piece of memory: plain functions, the same on a
// device and on a CPU, where they are tested.
//
// A warp reads its piece in rows of 128 bytes, of which lane i takes the 4 at 4i:
//
//   row    |word 0|word 1| ... |word 31|      each lane's register, per row:
//   row    |word 0|word 1| ... |word 31|      r = (r ^ word) * x^(8 * 128)
//   ...
//
// so that loads are coalesced and no lane waits for another. The product is linear in the bits of
// its 32, hence the xor of four table entries, one per byte: slicing-by-4 (Kounavis and Berry, A
// Systematic Approach to Building High Performance Software-Based CRC Generators, ISCC 2005), with
// tables for a stride of 128 bytes in place of 4. The tables are 4 KiB, in shared memory. A GPU has
// no carry-less multiplication, by which CPUs do without tables.
//
// The rows begin at a multiple of 128. Zeros before the piece change no register that begins as 0;
// what the rows have beyond its end, and each lane's own distance from there, is undone by a
// product with a negative power of x. The xor of all lanes is then the remainder of the piece: its
// CRC32C without the ones that begin and end it (Remainder below).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/crc32c_combine.h"

#if defined(__CUDACC__)
#define UNREFT_ON_BOTH __host__ __device__
#else
#define UNREFT_ON_BOTH
#endif

namespace unreft::snapshot::checksum {

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kWordBytes = 4;
inline constexpr uint32_t kRowBytes = kLanes * kWordBytes;

// Whose words are loaded before the first is used, so that few warps keep the memory busy.
inline constexpr uint32_t kRowsAhead = 8;

// What the kernel is given; the layout is that of its arguments.
struct Piece {
  uint64_t address = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Piece) == 16);

// By byte of a word and its value: what it comes to after a row.
using RowTable = std::array<std::array<uint32_t, 256>, kWordBytes>;
inline constexpr RowTable kRowTable = [] {
  RowTable table{};
  for (uint32_t byte = 0; byte < kWordBytes; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      table[byte][value] = crc32c::Multiply(value << (8 * byte), crc32c::PowerOfBytes(kRowBytes));
    }
  }
  return table;
}();

// By bytes of at most two rows: x^(-8 * bytes).
inline constexpr uint32_t kUndoMax = 2 * kRowBytes;
using UndoTable = std::array<uint32_t, kUndoMax>;
inline constexpr UndoTable kUndoTable = [] {
  UndoTable table{};
  for (uint32_t bytes = 0; bytes < kUndoMax; ++bytes) table[bytes] = crc32c::InverseOfBytes(bytes);
  return table;
}();

UNREFT_ON_BOTH inline uint32_t Multiplied(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= b & (0U - ((a >> bit) & 1));
    b = (b >> 1) ^ (crc32c::kPolynomial & (0U - (b & 1)));
  }
  return product;
}

// `table` is a RowTable, element by element.
UNREFT_ON_BOTH inline uint32_t AfterRow(const uint32_t* table, uint32_t word) {
  return table[word & 255] ^ table[256 + ((word >> 8) & 255)] ^ table[512 + ((word >> 16) & 255)] ^
         table[768 + (word >> 24)];
}

// Read once and not kept in caches, which are the job's.
UNREFT_ON_BOTH inline uint32_t LoadWord(uint64_t at) {
#if defined(__CUDA_ARCH__)
  return __ldcs(reinterpret_cast<const uint32_t*>(at));
#else
  return *reinterpret_cast<const uint32_t*>(at);
#endif
}

// Of the 4 bytes at `at` those that are the piece's; the others are not read.
UNREFT_ON_BOTH inline uint32_t EdgeWord(uint64_t at, uint64_t begin, uint64_t end) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < kWordBytes; ++i) {
    if (at + i < begin || at + i >= end) continue;
    word |= static_cast<uint32_t>(*reinterpret_cast<const unsigned char*>(at + i)) << (8 * i);
  }
  return word;
}

// The lane's share of the piece's remainder. `undo` is an UndoTable.
UNREFT_ON_BOTH inline uint32_t LaneRemainder(const Piece& piece, uint32_t lane,
                                             const uint32_t* table, const uint32_t* undo) {
  const uint64_t begin = piece.address;
  const uint64_t end = begin + piece.bytes;
  const uint64_t first_row = begin / kRowBytes * kRowBytes;
  const uint64_t rows = (end - first_row + kRowBytes - 1) / kRowBytes;
  if (rows == 0) return 0;
  const uint64_t last_row = first_row + kRowBytes * (rows - 1);
  const uint32_t offset = kWordBytes * lane;
  uint32_t value = AfterRow(table, EdgeWord(first_row + offset, begin, end));
  uint64_t row = first_row + kRowBytes;  // those up to the last are whole
  for (; row + kRowsAhead * kRowBytes <= last_row; row += kRowsAhead * kRowBytes) {
    uint32_t words[kRowsAhead];
    for (uint32_t i = 0; i < kRowsAhead; ++i) words[i] = LoadWord(row + offset + i * kRowBytes);
    for (uint32_t i = 0; i < kRowsAhead; ++i) value = AfterRow(table, value ^ words[i]);
  }
  for (; row < last_row; row += kRowBytes) value = AfterRow(table, value ^ LoadWord(row + offset));
  if (row == last_row) {
    value = AfterRow(table, value ^ EdgeWord(row + offset, begin, end));
    row += kRowBytes;
  }
  return Multiplied(value, undo[row + offset - end]);
}

// From the xor of all lanes to the CRC32C, and from one piece's remainder and the next one's to
// that of both.
constexpr uint32_t ToCrc32c(uint32_t remainder, uint64_t bytes) {
  return remainder ^ crc32c::OfZeros(bytes);
}

}  // namespace unreft::snapshot::checksum
