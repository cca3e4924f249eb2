// Which lines of a shard are looked at, and what their bytes come to: plain functions, the same on
// a device and on a CPU, where they are tested (TensorProbes; docs/second_net.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define UNREFT_ON_BOTH __host__ __device__
#else
#define UNREFT_ON_BOTH
#endif

namespace unreft::snapshot::probing {

inline constexpr uint64_t kLineBytes = 64;
inline constexpr uint32_t kLinesMax = 16;

// What the kernel is given of each; the layout is that of its arguments.
struct Shard {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t seed = 0;
};
static_assert(sizeof(Shard) == 24);

inline constexpr uint64_t kOdd0 = 0xa0761d6478bd642f;
inline constexpr uint64_t kOdd1 = 0xe7037ed1a0b428db;
inline constexpr uint64_t kOdd2 = 0x8ebc6af09c88c6e3;
inline constexpr uint64_t kOdd3 = 0x589965cc75374cc3;
inline constexpr uint64_t kOdd4 = 0x1d8e4e27c47d124f;

UNREFT_ON_BOTH inline uint64_t HighOfProduct(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

// The product's halves, one on the other, as wyhash does (Wang Yi): every bit of both factors
// reaches every bit of it.
UNREFT_ON_BOTH inline uint64_t Fold(uint64_t a, uint64_t b) {
  return HighOfProduct(a, b) ^ (a * b);
}

// --- Places ---

UNREFT_ON_BOTH inline bool IsWhole(uint64_t bytes, uint32_t lines) {
  return bytes <= lines * kLineBytes;
}

// Of a shard that is larger: from draw to draw, each the place of a line.
UNREFT_ON_BOTH inline uint64_t BeginDraws(uint64_t seed, uint64_t step) {
  return Fold(seed ^ kOdd1, step + kOdd3);
}
UNREFT_ON_BOTH inline uint64_t NextDraw(uint64_t draw, uint32_t line) {
  return Fold(draw ^ kOdd2, kOdd0 + line);
}
UNREFT_ON_BOTH inline uint64_t PlaceOf(uint64_t draw, uint64_t bytes) {
  const uint64_t places = (bytes + kLineBytes - 1) / kLineBytes;
  const uint64_t at = HighOfProduct(draw, places) * kLineBytes;  // draw / 2^64 of them
  return at < bytes - kLineBytes ? at : bytes - kLineBytes;
}

// --- Bytes ---

// `bytes` of them, 8 at most.
UNREFT_ON_BOTH inline uint64_t LoadBytes(uint64_t at, uint64_t bytes) {
  uint64_t word = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // seldom used, and it would be most of the kernel
#endif
  for (uint64_t i = 0; i < bytes; ++i) {
    word |= static_cast<uint64_t>(*reinterpret_cast<const unsigned char*>(at + i)) << (8 * i);
  }
  return word;
}

UNREFT_ON_BOTH inline uint64_t LoadWord(uint64_t at) {
#if defined(__CUDA_ARCH__)
  return at % 8 == 0 ? __ldcs(reinterpret_cast<const unsigned long long*>(at)) : LoadBytes(at, 8);
#else
  uint64_t word = 0;
  std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
  return word;
#endif
}

struct Line {
  uint64_t words[kLineBytes / 8];
};

struct WordsOfLine {
  const Line& line;
  UNREFT_ON_BOTH uint64_t operator[](uint32_t i) const { return line.words[i]; }
};
struct WordsAt {
  uint64_t at;
  UNREFT_ON_BOTH uint64_t operator[](uint32_t i) const { return LoadWord(at + 8 * i); }
};

template <typename Words>
UNREFT_ON_BOTH inline uint64_t DigestWords(uint64_t digest, const Words& w) {
  const uint64_t a = Fold(w[0] ^ kOdd0, w[1] ^ digest);
  const uint64_t b = Fold(w[2] ^ kOdd1, w[3] ^ kOdd2);
  const uint64_t c = Fold(w[4] ^ kOdd2, w[5] ^ kOdd3);
  const uint64_t d = Fold(w[6] ^ kOdd3, w[7] ^ kOdd4);
  return Fold(a ^ kOdd4, b + kOdd1) ^ Fold(c + digest, d ^ kOdd0);
}

UNREFT_ON_BOTH inline uint64_t DigestLine(uint64_t digest, const Line& line) {
  return DigestWords(digest, WordsOfLine{line});
}
// Of a whole line.
UNREFT_ON_BOTH inline uint64_t DigestLine(uint64_t digest, uint64_t at) {
  return DigestWords(digest, WordsAt{at});
}

UNREFT_ON_BOTH inline uint64_t DigestBytes(uint64_t digest, uint64_t at, uint64_t bytes) {
  for (; bytes >= kLineBytes; bytes -= kLineBytes) {
    digest = DigestLine(digest, at);
    at += kLineBytes;
  }
  if (bytes == 0) return digest;
  Line line{};
#if defined(__CUDA_ARCH__)
  for (uint64_t i = 0; i < kLineBytes / 8; ++i) {
    const uint64_t left = bytes > 8 * i ? bytes - 8 * i : 0;
    line.words[i] = left >= 8 ? LoadWord(at + 8 * i) : LoadBytes(at + 8 * i, left);
  }
#else
  std::memcpy(&line, reinterpret_cast<const void*>(at), bytes);
#endif
  return DigestLine(digest + bytes, line);
}

// Of the lines of `shard` that are looked at.
UNREFT_ON_BOTH inline uint64_t DigestShard(const Shard& shard, uint64_t step, uint32_t lines) {
  if (IsWhole(shard.bytes, lines)) return DigestBytes(shard.seed, shard.address, shard.bytes);
  uint64_t digest = shard.seed;
  uint64_t draw = BeginDraws(shard.seed, step);
  for (uint32_t line = 0; line < lines; ++line) {
    draw = NextDraw(draw, line);
    digest = DigestLine(digest, shard.address + PlaceOf(draw, shard.bytes));
  }
  return digest;
}

}  // namespace unreft::snapshot::probing
