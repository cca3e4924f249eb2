// Where a cold store is, as an operator names it: the absolute path of a directory, or
// s3://BUCKET/PREFIX. Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace unreft::durable {

struct S3Place {
  std::string bucket;
  std::string prefix;  // what all keys begin with, a '/' follows it; empty: the whole bucket

  // As it is named: "s3://bucket/prefix".
  std::string Text() const;
};

// Whether it is meant as one, right or wrong: it begins with "s3://".
bool IsS3Place(std::string_view text);

// InvalidArgument, with what was needed and found. A '/' at the end, and one that follows another,
// count for nothing, as in the path of a directory.
absl::StatusOr<S3Place> ParseS3Place(std::string_view text);

// InvalidArgument unless it is an absolute path, or ParseS3Place reads it.
absl::Status CheckColdPlace(std::string_view text);

}  // namespace unreft::durable
