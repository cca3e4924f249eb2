// Digest64: FNV-1a, 64 bits, over an encoding. Persistent (manifests, seals, session frames), so it
// never changes; for telling layouts apart, not for secrets.
#pragma once

#include <cstdint>
#include <string_view>

namespace unreft::layout {

inline uint64_t Digest64(std::string_view bytes) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char c : bytes) {
    digest = (digest ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return digest;
}

}  // namespace unreft::layout
