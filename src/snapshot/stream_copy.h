// StreamCopy: memcpy that goes past the cache where that is faster (AVX-512, AVX2), alone or with
// the checksum of what is copied.
//
// A snapshot's target is not read again by this core soon; writing it without reading its old lines
// first moves a third less over the memory bus (1.5-1.8 times memcpy). Stateless, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unreft::snapshot {

// Below this memcpy wins: the head and tail that are not whole lines, and the fence.
inline constexpr size_t kStreamBytesMin = 4096;

// Like memcpy, but the bytes are in order with later stores only after StreamFence on the same
// thread.
void StreamCopy(void* target, const void* source, size_t bytes);

// The same, and returns Crc32cExtend(crc, the bytes copied): in one pass over them, as fast as the
// copy alone where each is loaded once for both (AVX-512 with VPCLMULQDQ).
uint32_t StreamCopyCrc32c(uint32_t crc, void* target, const void* source, size_t bytes);

// What that does on other processors: a few KiB copied, then checked while they are in the cache.
// For tests.
uint32_t StreamCopyCrc32cInTiles(uint32_t crc, void* target, const void* source, size_t bytes);

void StreamFence();

// "avx512", "avx2" or "memcpy": what StreamCopy uses on this processor.
const char* StreamCopyKind();

// Whether StreamCopyCrc32c loads each byte once on this processor; else it works in tiles.
bool StreamCopyCrc32cIsFused();

}  // namespace unreft::snapshot
