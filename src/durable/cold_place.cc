#include "durable/cold_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "durable/cold_store.h"

namespace unreft::durable {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr size_t kBucketBytesMin = 3;
constexpr size_t kBucketBytesMax = 63;
// A key has 1,024 bytes at most, and names in a copy are short.
constexpr size_t kPrefixBytesMax = 600;
constexpr size_t kShownMax = 250;

bool IsOfBucket(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
}

absl::Status Refuse(std::string_view text, std::string_view needed) {
  return absl::InvalidArgumentError(
      fmt::format("needed {}, found '{}'", needed, CleanText(std::string(text), kShownMax)));
}

}  // namespace

std::string S3Place::Text() const {
  return fmt::format("{}{}{}{}", kScheme, bucket, prefix.empty() ? "" : "/", prefix);
}

bool IsS3Place(std::string_view text) { return text.starts_with(kScheme); }

absl::StatusOr<S3Place> ParseS3Place(std::string_view text) {
  if (!IsS3Place(text)) return Refuse(text, "s3://BUCKET/PREFIX");
  const std::string_view rest = text.substr(kScheme.size());
  S3Place place;
  place.bucket = rest.substr(0, rest.find('/'));
  const bool is_bucket =
      place.bucket.size() >= kBucketBytesMin && place.bucket.size() <= kBucketBytesMax &&
      std::ranges::all_of(place.bucket, IsOfBucket) && place.bucket.front() != '.' &&
      place.bucket.front() != '-' && place.bucket.back() != '.' && place.bucket.back() != '-' &&
      place.bucket.find("..") == std::string::npos;
  if (!is_bucket) {
    return Refuse(text, "s3://BUCKET/PREFIX with a bucket of 3 to 63 of a-z 0-9 . -");
  }
  for (size_t at = place.bucket.size(); at < rest.size();) {
    const size_t end = std::min(rest.find('/', at), rest.size());
    if (end != at) {
      if (!place.prefix.empty()) place.prefix += '/';
      place.prefix += rest.substr(at, end - at);
    }
    at = end + 1;
  }
  if (!CheckColdDirectory(place.prefix).ok() || place.prefix.size() > kPrefixBytesMax) {
    return Refuse(text,
                  fmt::format("s3://BUCKET/PREFIX with a prefix of at most {} bytes, in parts of 1 "
                              "to {} of A-Z a-z 0-9 _ . - with '/' between them",
                              kPrefixBytesMax, kColdPartBytesMax));
  }
  return place;
}

absl::Status CheckColdPlace(std::string_view text) {
  if (IsS3Place(text)) return ParseS3Place(text).status();
  if (text.starts_with('/')) return absl::OkStatus();
  return Refuse(text, "an absolute path, or s3://BUCKET/PREFIX");
}

}  // namespace unreft::durable
