#include "snapshot/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace unreft::snapshot {
namespace {

constexpr size_t kLine = 64;

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

#else

Kind Detect() { return Kind::kMemcpy; }
void StreamLines(Kind, std::byte* target, const std::byte* source, size_t bytes) {
  std::memcpy(target, source, bytes);
}

#endif

Kind TheKind() {
  static const Kind kKind = Detect();
  return kKind;
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
