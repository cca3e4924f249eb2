#include "base/segment_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace unreft {
namespace {

constexpr size_t kJobNameBytesMax = 64;

bool IsJobChar(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

bool IsNameChar(char c) { return IsJobChar(c) || c == '.'; }

}  // namespace

std::string SegmentPrefix(std::string_view job, uint64_t node) {
  return fmt::format("/unreft.{}.{}.", job, node);
}

absl::Status CheckJobName(std::string_view job) {
  if (!job.empty() && job.size() <= kJobNameBytesMax &&
      std::all_of(job.begin(), job.end(), IsJobChar)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("job name \"{}\": needs 1 to {} of A-Z a-z 0-9 _ -", job, kJobNameBytesMax));
}

absl::Status CheckSegmentName(std::string_view name) {
  if (name.size() < 2 || name.front() != '/' || name.size() > kSegmentNameBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("segment name \"{}\" has {} bytes: needs '/' and 1 to {} more", name,
                    name.size(), kSegmentNameBytesMax - 1));
  }
  const auto rest = name.substr(1);
  const auto bad = std::find_if_not(rest.begin(), rest.end(), IsNameChar);
  if (bad != rest.end()) {
    return absl::InvalidArgumentError(fmt::format(
        "segment name \"{}\" has '{}': only A-Z a-z 0-9 _ . - may follow the '/'", name, *bad));
  }
  return absl::OkStatus();
}

}  // namespace unreft
