// What servers of S3 answer in XML. Everything in it is another's word: it is bounded and checked
// here, and what does not read as what was asked for is refused. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unreft::durable {

inline constexpr size_t kS3KeyBytesMax = 1024;
inline constexpr size_t kS3UploadIdBytesMax = 1024;

// Why a request was refused; empty where the answer does not say.
struct S3Error {
  std::string code;     // "NoSuchKey"
  std::string message;  // clean, on one line
  std::string region;   // that the bucket is in
};

// Of any text: what is no error in XML has neither code nor message.
S3Error ParseS3Error(std::string_view text);

struct S3Object {
  std::string key;
  uint64_t bytes = 0;
};

struct S3ObjectPage {
  std::vector<S3Object> objects;
  std::string next;  // what the next page is asked for with; empty: this is the last
};

struct S3Upload {
  std::string key;
  std::string id;
  std::chrono::system_clock::time_point began;
};

struct S3UploadPage {
  std::vector<S3Upload> uploads;
  std::string next_key;  // empty: this is the last
  std::string next_id;
};

struct S3PartPage {
  std::vector<std::chrono::system_clock::time_point> written;  // when each part was
  std::string next;                                            // as of S3ObjectPage
};

// Unavailable, saying what is wrong, when the text is not such an answer.
absl::StatusOr<S3ObjectPage> ParseS3Objects(std::string_view text);
absl::StatusOr<S3UploadPage> ParseS3Uploads(std::string_view text);
absl::StatusOr<S3PartPage> ParseS3Parts(std::string_view text);
// The upload that was begun.
absl::StatusOr<std::string> ParseS3UploadId(std::string_view text);
// Of an upload that was completed: its CRC32C in base64, or nothing where the server says none.
absl::StatusOr<std::string> ParseS3Completed(std::string_view text);

// What an upload is completed with.
struct S3Part {
  uint64_t number = 0;
  std::string etag;
  std::string crc32c;  // in base64
};
std::string CompletionText(const std::vector<S3Part>& parts);

}  // namespace unreft::durable
