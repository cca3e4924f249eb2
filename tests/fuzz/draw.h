// Draw: small numbers and choices out of an input's bytes; zeros when these are over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace unreft::fuzz {

class Draw {
 public:
  explicit Draw(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const char byte = bytes_.front();
    bytes_.remove_prefix(1);
    return static_cast<uint8_t>(byte);
  }
  // Below `bound`, which is 1 to 256.
  uint64_t Below(uint64_t bound) { return Byte() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Mostly small; now and then any.
  uint64_t Number() {
    const uint8_t small = Byte();
    if (small < 250) return small;
    uint64_t number = 0;
    const std::string bytes = Take(sizeof(number));
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::string Take(size_t count) {
    const std::string taken(bytes_.substr(0, count));
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  // A length of up to 255 (two bytes of it: up to 65,535), and so many bytes.
  std::string Text() { return Take(Byte()); }
  std::string LongText() {
    const size_t low = Byte();
    return Take(low + 256 * size_t{Byte()});
  }
  std::string Rest() { return Take(bytes_.size()); }

 private:
  std::string_view bytes_;
};

// What LongText reads.
inline std::string LongTextOf(const std::string& text) {
  return std::string{static_cast<char>(text.size() % 256), static_cast<char>(text.size() / 256)} +
         text;
}

}  // namespace unreft::fuzz
