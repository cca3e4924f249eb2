#include "durable/cold_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace unreft::durable {
namespace {

bool IsAllowed(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

absl::Status Refuse(std::string_view name, std::string_view why) {
  constexpr size_t kShownMax = 250;
  return absl::InvalidArgumentError(fmt::format(
      "cold file name '{}' {}: needed parts of 1 to {} of A-Z a-z 0-9 _ . - with '/' between them",
      CleanText(name, kShownMax), why, kColdPartBytesMax));
}

}  // namespace

absl::Status CheckColdName(std::string_view name) {
  if (name.size() > kColdNameBytesMax) {
    return Refuse(name, fmt::format("has {} bytes, at most {}", name.size(), kColdNameBytesMax));
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty()) return Refuse(name, "has an empty part");
    if (part.size() > kColdPartBytesMax) {
      return Refuse(name, fmt::format("has a part of {} bytes", part.size()));
    }
    if (!std::all_of(part.begin(), part.end(), IsAllowed)) {
      return Refuse(name, "has another character");
    }
    if (part == "." || part == "..") return Refuse(name, "has '.' or '..' as a part");
    if (part.starts_with(kColdUnfinishedPrefix)) {
      return Refuse(name, "has a part that is kept for files under way");
    }
    begin = end + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckColdDirectory(std::string_view directory) {
  return directory.empty() ? absl::OkStatus() : CheckColdName(directory);
}

}  // namespace unreft::durable
