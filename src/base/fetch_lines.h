// FetchLines: has the processor bring memory into its cache that is to be used soon. A hint, which
// changes nothing: of memory that is not there too.
#pragma once

#include <cstddef>

namespace unreft {

inline constexpr size_t kCacheLineBytes = 64;

inline void FetchLines(const void* begin, size_t bytes) {
  const auto* at = static_cast<const char*>(begin);
  for (size_t i = 0; i < bytes; i += kCacheLineBytes) __builtin_prefetch(at + i);
  if (bytes > 0) __builtin_prefetch(at + bytes - 1);  // where it does not begin with a line
}

}  // namespace unreft
