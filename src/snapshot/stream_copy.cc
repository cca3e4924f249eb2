#include "snapshot/stream_copy.h"

#include <cstdint>
#include <cstring>
#include <span>

#include "base/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace unreft::snapshot {
namespace {

constexpr size_t kLine = 64;
// Of one turn of the loop that folds: a CRC register for each of its lines.
constexpr size_t kFoldLines = 8;
constexpr size_t kFoldBytes = kFoldLines * kLine;
// In the first-level cache from its copy until it is checked.
constexpr size_t kTileBytes = 4096;

enum class Kind { kMemcpy, kAvx2, kAvx512 };

#if defined(__x86_64__)

Kind Detect() {
  if (__builtin_cpu_supports("avx512f")) return Kind::kAvx512;
  if (__builtin_cpu_supports("avx2")) return Kind::kAvx2;
  return Kind::kMemcpy;
}

// `target` is on a line's beginning, `bytes` a multiple of four lines.
__attribute__((target("avx512f"))) void StreamLines512(std::byte* target, const std::byte* source,
                                                       size_t bytes) {
  for (size_t at = 0; at < bytes; at += 4 * kLine) {
    const __m512i a = _mm512_loadu_si512(source + at);
    const __m512i b = _mm512_loadu_si512(source + at + kLine);
    const __m512i c = _mm512_loadu_si512(source + at + 2 * kLine);
    const __m512i d = _mm512_loadu_si512(source + at + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 3 * kLine), d);
  }
}

__attribute__((target("avx2"))) void StreamLines256(std::byte* target, const std::byte* source,
                                                    size_t bytes) {
  constexpr size_t kHalf = kLine / 2;
  for (size_t at = 0; at < bytes; at += 4 * kHalf) {
    const auto* from = reinterpret_cast<const __m256i*>(source + at);
    auto* to = reinterpret_cast<__m256i*>(target + at);
    const __m256i a = _mm256_loadu_si256(from);
    const __m256i b = _mm256_loadu_si256(from + 1);
    const __m256i c = _mm256_loadu_si256(from + 2);
    const __m256i d = _mm256_loadu_si256(from + 3);
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
    _mm256_stream_si256(to + 2, c);
    _mm256_stream_si256(to + 3, d);
  }
}

void StreamLines(Kind kind, std::byte* target, const std::byte* source, size_t bytes) {
  if (kind == Kind::kAvx512) {
    StreamLines512(target, source, bytes);
  } else {
    StreamLines256(target, source, bytes);
  }
}

bool DetectFold() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

// x^bits modulo the polynomial of CRC32C, as PCLMULQDQ wants a factor of reflected operands: bit 32
// is x^0, bit 1 is x^31.
constexpr int64_t PowerOfX(unsigned bits) {
  uint32_t power = uint32_t{1} << 31;
  for (; bits > 0; --bits) power = (power >> 1) ^ ((power & 1) != 0 ? 0x82f63b78 : 0);
  return static_cast<int64_t>(power) << 1;
}

// Copies and checks whole turns, one at least; `target` is on a line's beginning. The registers are
// 32 remainders of 128 bits each, and a turn carries every one of them over 512 bytes to those that
// lie there: multiplied by x^4096, its two halves apart (V. Gopal et al., "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction", 2009). What is left in them in the end has the
// checksum of all that was carried.
__attribute__((target("avx512f,vpclmulqdq"))) uint32_t FoldLines(uint32_t crc, std::byte* target,
                                                                 const std::byte* source,
                                                                 size_t bytes) {
  // Beyond the page that the hardware's own prefetching ends with.
  constexpr size_t kAhead = 4096;
  constexpr int64_t kLow = PowerOfX(8 * kFoldBytes + 32);
  constexpr int64_t kHigh = PowerOfX(8 * kFoldBytes - 32);
  const __m512i factors = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  __m512i registers[kFoldLines];
#pragma GCC unroll 8
  for (__m512i& one : registers) one = _mm512_setzero_si512();
  // Of the empty message before the first turn: the state that it begins with.
  __m512i begin = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc)));
  for (size_t at = 0; at < bytes; at += kFoldBytes) {
    __m512i lines[kFoldLines];
#pragma GCC unroll 8
    for (size_t i = 0; i < kFoldLines; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(source + at + i * kLine + kAhead), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kFoldLines; ++i) {
      lines[i] = _mm512_loadu_si512(source + at + i * kLine);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kFoldLines; ++i) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + i * kLine), lines[i]);
    }
    lines[0] = _mm512_xor_si512(lines[0], begin);
    begin = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (size_t i = 0; i < kFoldLines; ++i) {
      const __m512i low = _mm512_clmulepi64_epi128(registers[i], factors, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(registers[i], factors, 0x11);
      registers[i] = _mm512_ternarylogic_epi64(low, high, lines[i], 0x96);  // all three xored
    }
  }
  std::byte left[kFoldBytes];
  std::memcpy(left, registers, sizeof(left));
  return Crc32cExtend(~uint32_t{0}, left);  // from the state 0: the true one is in the registers
}

#else

Kind Detect() { return Kind::kMemcpy; }
bool DetectFold() { return false; }
uint32_t FoldLines(uint32_t crc, std::byte*, const std::byte*, size_t) { return crc; }
void StreamLines(Kind, std::byte* target, const std::byte* source, size_t bytes) {
  std::memcpy(target, source, bytes);
}

#endif

Kind TheKind() {
  static const Kind kKind = Detect();
  return kKind;
}

uint32_t CopyCrc32c(uint32_t crc, std::byte* target, const std::byte* source, size_t bytes) {
  if (bytes == 0) return crc;
  std::memcpy(target, source, bytes);
  return Crc32cExtend(crc, std::span(target, bytes));
}

}  // namespace

void StreamCopy(void* target_begin, const void* source_begin, size_t bytes) {
  const Kind kind = TheKind();
  if (bytes < kStreamBytesMin || kind == Kind::kMemcpy) {
    if (bytes > 0) std::memcpy(target_begin, source_begin, bytes);
    return;
  }
  auto* target = static_cast<std::byte*>(target_begin);
  const auto* source = static_cast<const std::byte*>(source_begin);
  const size_t head = -reinterpret_cast<uintptr_t>(target) % kLine;
  const size_t lines = (bytes - head) / (4 * kLine) * (4 * kLine);
  std::memcpy(target, source, head);
  StreamLines(kind, target + head, source + head, lines);
  std::memcpy(target + head + lines, source + head + lines, bytes - head - lines);
}

uint32_t StreamCopyCrc32cInTiles(uint32_t crc, void* target_begin, const void* source_begin,
                                 size_t bytes) {
  auto* target = static_cast<std::byte*>(target_begin);
  const auto* source = static_cast<const std::byte*>(source_begin);
  // The first has the bytes before a line's beginning too, so that the others are whole lines.
  size_t tile = kTileBytes + -reinterpret_cast<uintptr_t>(target) % kLine;
  while (bytes > 0) {
    if (bytes < tile + kTileBytes) tile = bytes;  // none is left that is too small to stream
    StreamCopy(target, source, tile);
    crc = Crc32cExtend(crc, std::span(source, tile));
    target += tile;
    source += tile;
    bytes -= tile;
    tile = kTileBytes;
  }
  return crc;
}

uint32_t StreamCopyCrc32c(uint32_t crc, void* target_begin, const void* source_begin,
                          size_t bytes) {
  auto* target = static_cast<std::byte*>(target_begin);
  const auto* source = static_cast<const std::byte*>(source_begin);
  if (bytes < kStreamBytesMin) return CopyCrc32c(crc, target, source, bytes);
  if (!StreamCopyCrc32cIsFused()) return StreamCopyCrc32cInTiles(crc, target, source, bytes);
  const size_t head = -reinterpret_cast<uintptr_t>(target) % kLine;
  const size_t lines = (bytes - head) / kFoldBytes * kFoldBytes;
  crc = CopyCrc32c(crc, target, source, head);
  crc = FoldLines(crc, target + head, source + head, lines);
  return CopyCrc32c(crc, target + head + lines, source + head + lines, bytes - head - lines);
}

bool StreamCopyCrc32cIsFused() {
  static const bool kFused = DetectFold();
  return kFused;
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

const char* StreamCopyKind() {
  switch (TheKind()) {
    case Kind::kAvx512:
      return "avx512";
    case Kind::kAvx2:
      return "avx2";
    case Kind::kMemcpy:
      break;
  }
  return "memcpy";
}

}  // namespace unreft::snapshot
