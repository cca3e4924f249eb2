// S3Client: the requests of S3 that a cold store is made of, each asked again for a while when the
// server is away, overloaded or says that it failed. What is sent has its checksum along, which the
// server compares, and what comes back is compared with what it says of itself.
//
// Blocking; thread-safe. Statuses are those of ColdStore, their messages say what was asked of
// which object, and what the server answered; besides: FailedPrecondition when the bucket is not
// there or is in another region, Cancelled when the process is to end, DataLoss when the server
// says that it has stored other bytes than were sent.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/random.h"
#include "durable/aws_environment.h"
#include "durable/cold_place.h"
#include "durable/http_sender.h"
#include "durable/s3_answers.h"
#include "durable/s3_credentials.h"

namespace unreft::durable {

struct S3Pace {
  // Blocks for so long; false when the process is to end, and then nothing is asked again.
  std::function<bool(Duration)> pause;
  int attempts = 8;  // of each request
  Duration first_pause = std::chrono::milliseconds(200);
  Duration pause_max = std::chrono::seconds(5);
};

// CRC32C as S3 writes it.
std::string S3Checksum(uint32_t crc);

class S3Client {
 public:
  struct Object {
    uint64_t bytes = 0;
    std::string writer;  // who wrote it, as it said; empty: no writer of ours
  };

  // `sender` and `credentials` outlive this.
  S3Client(S3Place place, S3Settings settings, HttpSender& sender, S3Credentials& credentials,
           S3Pace pace, Random random);

  const S3Place& place() const { return place_; }
  // Rather than another server.
  bool IsOfAws() const { return settings_.endpoint.empty(); }

  // "s3://bucket/key", with what names it in the place.
  std::string Describe(std::string_view key) const;

  // NotFound.
  absl::StatusOr<Object> Head(const std::string& key);
  // All of it. NotFound; ResourceExhausted when it has more than `bytes_max`.
  absl::StatusOr<std::string> Get(const std::string& key, uint64_t bytes_max);
  // Fills `into`, which is not empty. NotFound; OutOfRange.
  absl::Status Read(const std::string& key, uint64_t offset, std::span<std::byte> into);
  // AlreadyExists when the key is taken. `writer` tells this call from those of others: when an
  // answer was lost, the key may be taken by this very call.
  absl::Status Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc,
                   const std::string& writer);
  // Whether or not it is there.
  absl::Status Delete(const std::string& key);
  // At most `entries_max` of the keys that begin with `prefix`, after what `next` says.
  absl::StatusOr<S3ObjectPage> ListObjects(const std::string& prefix, const std::string& next,
                                           uint64_t entries_max);

  absl::StatusOr<std::string> BeginUpload(const std::string& key, const std::string& writer);
  // Aborted when the upload is gone.
  absl::StatusOr<S3Part> PutPart(const std::string& key, const std::string& upload, uint64_t number,
                                 std::span<const std::byte> bytes, uint32_t crc);
  // Aborted, too; AlreadyExists.
  absl::Status CompleteUpload(const std::string& key, const std::string& upload,
                              const std::vector<S3Part>& parts, uint64_t bytes, uint32_t crc,
                              const std::string& writer);
  // OK when it is gone already.
  absl::Status AbortUpload(const std::string& key, const std::string& upload);
  absl::StatusOr<S3UploadPage> ListUploads(const std::string& prefix, const S3UploadPage& after);
  absl::StatusOr<S3PartPage> ListParts(const S3Upload& upload, const std::string& next);

  // Random, to tell writers apart.
  std::string NewWriter();

 private:
  struct Said {
    HttpAnswer answer;
    S3Error error;                   // of one that is no success
    bool may_have_happened = false;  // an earlier attempt, whose answer was lost
    bool is_ok() const { return answer.status >= 200 && answer.status < 300; }
  };
  // Unavailable: it is asked again.
  using Check = absl::FunctionRef<absl::Status(const HttpAnswer&)>;

  HttpRequest Request(std::string method, std::string_view key) const;
  // The last answer, which is a success that `check` accepts, or says why not for good.
  absl::StatusOr<Said> Ask(std::string_view what, std::string_view key, HttpRequest request,
                           Check check, int attempts);
  absl::StatusOr<Said> Ask(std::string_view what, std::string_view key, HttpRequest request);
  absl::StatusOr<Said> Ask(std::string_view what, std::string_view key, HttpRequest request,
                           Check check);
  absl::Status Refusal(std::string_view what, std::string_view key, const Said& said) const;
  absl::Status OutOfRange(const std::string& key, uint64_t offset, uint64_t bytes);
  // Of a key that is taken: OK if it was `writer`.
  absl::Status CheckTakenBy(std::string_view what, const std::string& key,
                            const std::string& writer, const Said& said);
  bool PauseBefore(int attempt);

  const S3Place place_;
  const S3Settings settings_;
  const std::string url_;  // of the bucket
  HttpSender& sender_;
  S3Credentials& credentials_;
  const S3Pace pace_;
  std::mutex mutex_;
  Random random_;  // guarded by mutex_
};

}  // namespace unreft::durable
