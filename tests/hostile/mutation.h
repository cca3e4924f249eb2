// Bytes made wrong in the ways that parsers do not like.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/random.h"

namespace unreft {

// One to four changes: a byte, a number at its limits, a piece cut out, doubled or at the end.
inline std::string Mutated(std::string bytes, Random& random) {
  constexpr uint64_t kNumbers[] = {0,
                                   1,
                                   0x7f,
                                   0xff,
                                   0xffff,
                                   uint64_t{1} << 31,
                                   0xffff'ffff,
                                   uint64_t{1} << 33,
                                   uint64_t{1} << 62,
                                   (uint64_t{1} << 63) - 1,
                                   uint64_t{1} << 63,
                                   ~uint64_t{0} - 1,
                                   ~uint64_t{0}};
  for (uint64_t left = 1 + random.Below(4); left > 0; --left) {
    const size_t at = random.Below(bytes.size() + 1);
    const size_t rest = bytes.size() - at;
    switch (random.Below(6)) {
      case 0:
        if (rest > 0) bytes[at] = static_cast<char>(random.Next());
        break;
      case 1:
      case 2: {
        const uint64_t number = kNumbers[random.Below(std::size(kNumbers))];
        std::memcpy(bytes.data() + at, &number, std::min(rest, sizeof(number)));
        break;
      }
      case 3:
        bytes.erase(at, random.Below(rest + 1));
        break;
      case 4:
        bytes.insert(at, bytes.substr(at, random.Below(rest + 1)));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

}  // namespace unreft
