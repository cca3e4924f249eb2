#include "base/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace unreft {
namespace {

constexpr std::string_view kCut = "...";

// U+0000 to U+001F, U+007F to U+009F, and the two that end a line or a paragraph.
bool IsControl(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  return character == "\xe2\x80\xa8" || character == "\xe2\x80\xa9";
}

void AppendEscaped(std::string_view bytes, std::string& into) {
  for (const char c : bytes) {
    switch (c) {
      case '\n':
        into += "\\n";
        break;
      case '\r':
        into += "\\r";
        break;
      case '\t':
        into += "\\t";
        break;
      default:
        into += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
  }
}

}  // namespace

size_t Utf8SequenceBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return 0;
  uint32_t code = byte(0) & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[bytes] || code > 0x10ffff || is_surrogate ? 0 : bytes;
}

std::string CleanText(std::string_view text, size_t bytes_max) {
  std::string clean;
  size_t room_for_cut = 0;  // where `clean` is to end if it is cut
  while (!text.empty()) {
    const size_t known = Utf8SequenceBytes(text);
    const std::string_view character = text.substr(0, known == 0 ? 1 : known);
    if (known == 0 || IsControl(character)) {
      AppendEscaped(character, clean);
    } else {
      clean += character;
    }
    text.remove_prefix(character.size());
    if (clean.size() > bytes_max) return clean.substr(0, room_for_cut).append(kCut);
    if (clean.size() + kCut.size() <= bytes_max) room_for_cut = clean.size();
  }
  return clean;
}

}  // namespace unreft
