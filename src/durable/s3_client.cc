#include "durable/s3_client.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "base/text.h"

namespace unreft::durable {
namespace {

// Of requests that are not data: a server that takes longer is away.
constexpr std::chrono::seconds kSmallWithin(30);
constexpr std::chrono::seconds kAbortWithin(5);
constexpr std::chrono::minutes kLargeWithin(5);
constexpr size_t kSmallBytes = 1 << 20;
constexpr uint64_t kPageBytesMax = uint64_t{16} << 20;
constexpr size_t kEtagBytesMax = 256;
constexpr const char* kWriterHeader = "x-amz-meta-unreft-writer";
constexpr const char* kChecksumHeader = "x-amz-checksum-crc32c";
constexpr const char* kChecksumKindHeader = "x-amz-checksum-type";
constexpr int kAbortAttempts = 3;
constexpr int kDamagedMax = 3;

std::string HeaderOf(const HttpAnswer& answer, const char* name) {
  const auto found = answer.headers.find(name);
  return found == answer.headers.end() ? "" : found->second;
}

bool IsTransient(const HttpAnswer& answer, const S3Error& error) {
  constexpr std::array<std::string_view, 8> kCodes = {
      "RequestTimeout",   "BadDigest",          "XAmzContentChecksumMismatch",
      "SlowDown",         "InternalError",      "ConditionalRequestConflict",
      "OperationAborted", "ServiceUnavailable",
  };
  if (answer.status == 501 || answer.status == 507) return false;
  return answer.status >= 500 || answer.status == 429 || answer.status == 408 ||
         answer.status == 409 || std::ranges::find(kCodes, error.code) != kCodes.end();
}

bool IsFull(const HttpAnswer& answer, const S3Error& error) {
  return answer.status == 507 || error.code.find("Quota") != std::string::npos ||
         error.code.find("StorageFull") != std::string::npos;
}

// What the server computed of what it got.
absl::Status CheckStored(const HttpAnswer& answer, const std::string& sent) {
  const std::string found = HeaderOf(answer, kChecksumHeader);
  if (found.empty() || found == sent) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("it says that it stored bytes of CRC32C {}, needed {}",
                                            CleanText(found, 100), sent));
}

absl::Status CheckEtag(const HttpAnswer& answer) {
  const std::string etag = HeaderOf(answer, "etag");
  if (!etag.empty() && etag.size() <= kEtagBytesMax && CleanText(etag) == etag) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("it names no ETag of the part");
}

std::string Answered(const HttpAnswer& answer, const S3Error& error) {
  const std::string why =
      error.code.empty() ? "" : fmt::format(" {}: {}", error.code, error.message);
  return fmt::format("the server answered {}{}", answer.status, why);
}

constexpr auto kAny = [](const HttpAnswer&) { return absl::OkStatus(); };

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

std::string S3Checksum(uint32_t crc) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>((crc >> shift) & 0xff);
  return absl::Base64Escape(bytes);
}

S3Client::S3Client(S3Place place, S3Settings settings, HttpSender& sender,
                   S3Credentials& credentials, S3Pace pace, Random random)
    : place_(std::move(place)),
      settings_(std::move(settings)),
      url_(UrlOfBucket(settings_, place_.bucket)),
      sender_(sender),
      credentials_(credentials),
      pace_(std::move(pace)),
      random_(random) {}

std::string S3Client::Describe(std::string_view key) const {
  return fmt::format("s3://{}{}{}", place_.bucket, key.empty() ? "" : "/", key);
}

std::string S3Client::NewWriter() {
  std::lock_guard lock(mutex_);
  std::string writer;
  for (const uint8_t byte : random_.NextId()) writer += fmt::format("{:02x}", byte);
  return writer;
}

HttpRequest S3Client::Request(std::string method, std::string_view key) const {
  HttpRequest request;
  request.method = std::move(method);
  request.url = fmt::format("{}/{}", url_, key);
  if (key.empty() && !settings_.endpoint.empty()) request.url.pop_back();
  request.region = settings_.region;
  return request;
}

bool S3Client::PauseBefore(int attempt) {
  Duration longest = pace_.first_pause;
  for (int i = 1; i < attempt && longest < pace_.pause_max; ++i) longest *= 2;
  longest = std::min(longest, pace_.pause_max);
  Duration pause = longest / 2;
  {
    std::lock_guard lock(mutex_);  // spread, so that nodes do not ask all at once
    pause += Duration(random_.Below(static_cast<uint64_t>((longest / 2).count()) + 1));
  }
  return pace_.pause(pause);
}

absl::StatusOr<S3Client::Said> S3Client::Ask(std::string_view what, std::string_view key,
                                             HttpRequest request) {
  return Ask(what, key, std::move(request), kAny, pace_.attempts);
}

absl::StatusOr<S3Client::Said> S3Client::Ask(std::string_view what, std::string_view key,
                                             HttpRequest request, Check check) {
  return Ask(what, key, std::move(request), check, pace_.attempts);
}

absl::StatusOr<S3Client::Said> S3Client::Ask(std::string_view what, std::string_view key,
                                             HttpRequest request, Check check, int attempts) {
  const bool is_small = request.into.empty() && request.body.size() <= kSmallBytes;
  if (is_small && request.within == Duration()) request.within = kSmallWithin;
  request.ends_with_process = !is_small;
  bool may_have_happened = false;
  bool has_renewed = false;
  absl::Status failure;
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<S3Keys> keys = credentials_.Get();
    absl::StatusOr<HttpAnswer> answer = absl::UnavailableError("");
    if (keys.ok()) {
      request.keys = *std::move(keys);
      answer = sender_.Send(request);
    } else {
      answer = keys.status();
    }
    if (answer.ok()) {
      Said said{.answer = *std::move(answer), .error = {}, .may_have_happened = may_have_happened};
      if (said.is_ok()) {
        failure = said.answer.has_too_much && request.into.empty() && request.method != "GET"
                      ? absl::UnavailableError("its answer is too long")
                      : check(said.answer);
        if (failure.ok()) return said;
        if (!absl::IsUnavailable(failure)) {
          return absl::Status(failure.code(),
                              fmt::format("{} '{}': {}", what, Describe(key), failure.message()));
        }
        may_have_happened = true;
      } else {
        said.error = ParseS3Error(said.answer.text);
        if (said.error.code == "ExpiredToken" && !has_renewed) {
          has_renewed = true;
          credentials_.Forget();
        } else if (!IsTransient(said.answer, said.error) || IsFull(said.answer, said.error)) {
          return said;
        }
        failure = absl::UnavailableError(Answered(said.answer, said.error));
        may_have_happened = true;
      }
    } else {
      failure = answer.status();
      if (!absl::IsUnavailable(failure)) {
        return absl::Status(failure.code(),
                            fmt::format("{} '{}': {}", what, Describe(key), failure.message()));
      }
      may_have_happened = true;
    }
    if (attempt >= attempts || !PauseBefore(attempt)) {
      return absl::UnavailableError(fmt::format("{} '{}': {} ({} attempts)", what, Describe(key),
                                                failure.message(), attempt));
    }
  }
}

absl::Status S3Client::Refusal(std::string_view what, std::string_view key,
                               const Said& said) const {
  const auto& [answer, error, may_have_happened] = said;
  const std::string text = fmt::format("{} '{}': {}", what, Describe(key), Answered(answer, error));
  std::string region = HeaderOf(answer, "x-amz-bucket-region");
  if (region.empty()) region = error.region;
  if (!region.empty() && region != settings_.region) {
    return absl::FailedPreconditionError(
        fmt::format("{}; the bucket is in region '{}', needed it as AWS_REGION, found '{}'", text,
                    CleanText(region, 100), settings_.region));
  }
  if (IsFull(answer, error)) return absl::ResourceExhaustedError(text);
  if (error.code == "NoSuchBucket") {
    return absl::FailedPreconditionError(
        fmt::format("{}: needed the bucket '{}' at {}: make it, or name another", text,
                    place_.bucket, url_.substr(0, url_.find('/', 8))));
  }
  switch (answer.status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(text);
    case 404:
      return absl::NotFoundError(text);
    case 412:
      return absl::AlreadyExistsError(
          fmt::format("{} '{}': it is there already", what, Describe(key)));
    case 501:
      return absl::FailedPreconditionError(fmt::format(
          "{}: needed a server with conditional writes (If-None-Match) and CRC32C", text));
    default:
      break;
  }
  const bool is_ours = answer.status >= 300 && answer.status < 500 && !IsTransient(answer, error);
  return is_ours ? absl::FailedPreconditionError(text) : absl::UnavailableError(text);
}

absl::StatusOr<S3Client::Object> S3Client::Head(const std::string& key) {
  Object object;
  const auto check = [&](const HttpAnswer& answer) {
    if (absl::SimpleAtoi(HeaderOf(answer, "content-length"), &object.bytes)) {
      return absl::OkStatus();
    }
    return absl::UnavailableError("it names no length");
  };
  const absl::StatusOr<Said> said = Ask("look at", key, Request("HEAD", key), check);
  if (!said.ok()) return said.status();
  if (!said->is_ok()) return Refusal("look at", key, *said);
  object.writer = HeaderOf(said->answer, kWriterHeader);
  return object;
}

absl::StatusOr<std::string> S3Client::Get(const std::string& key, uint64_t bytes_max) {
  HttpRequest request = Request("GET", key);
  request.text_bytes_max = std::max<uint64_t>(bytes_max, kSmallBytes);
  request.within = kLargeWithin;
  request.headers.emplace_back("x-amz-checksum-mode", "ENABLED");
  // What was damaged on the way is read again. What is damaged where it lies is handed on as it is:
  // whoever reads it has a checksum of his own, and can say what it was.
  int damaged = 0;
  const auto check = [&damaged](const HttpAnswer& answer) {
    if (answer.has_too_much) return absl::OkStatus();
    const std::string needed = HeaderOf(answer, kChecksumHeader);
    // That of an upload may be of its parts.
    if (needed.empty() || needed.find('-') != std::string::npos ||
        HeaderOf(answer, kChecksumKindHeader) == "COMPOSITE") {
      return absl::OkStatus();
    }
    const std::string found = S3Checksum(Crc32c(BytesOf(answer.text)));
    if (found == needed || ++damaged == kDamagedMax) return absl::OkStatus();
    return absl::UnavailableError(
        fmt::format("needed bytes of CRC32C {}, found {}", CleanText(needed, 100), found));
  };
  absl::StatusOr<Said> said = Ask("read", key, std::move(request), check);
  if (!said.ok()) return said.status();
  if (!said->is_ok()) return Refusal("read", key, *said);
  if (!said->answer.has_too_much && said->answer.text.size() <= bytes_max) {
    return std::move(said->answer.text);
  }
  uint64_t bytes = said->answer.text.size();
  if (said->answer.has_too_much) {
    const absl::StatusOr<Object> object = Head(key);
    if (!object.ok()) return object.status();
    bytes = object->bytes;
  }
  return absl::ResourceExhaustedError(
      fmt::format("read '{}': it has {} bytes, at most {} were expected: is it what it should be?",
                  Describe(key), bytes, bytes_max));
}

absl::Status S3Client::OutOfRange(const std::string& key, uint64_t offset, uint64_t bytes) {
  const absl::StatusOr<Object> object = Head(key);
  if (!object.ok()) return object.status();
  return absl::OutOfRangeError(fmt::format("read '{}': {} bytes at {} of an object of {} bytes",
                                           Describe(key), bytes, offset, object->bytes));
}

absl::Status S3Client::Read(const std::string& key, uint64_t offset, std::span<std::byte> into) {
  const uint64_t bytes = into.size();
  if (offset > UINT64_MAX - bytes) return OutOfRange(key, offset, bytes);
  HttpRequest request = Request("GET", key);
  request.into = into;
  const std::string range = fmt::format("bytes={}-{}", offset, offset + bytes - 1);
  request.headers.emplace_back("range", range);
  bool is_short = false;
  const auto check = [&](const HttpAnswer& answer) {
    // "bytes 0-99/1000": the object may end before what was asked for does.
    const std::string begin = fmt::format("bytes {}-", offset);
    const std::string found = HeaderOf(answer, "content-range");
    if (answer.status != 206 || !found.starts_with(begin) || answer.has_too_much) {
      return absl::UnavailableError(fmt::format("needed {}, found {} with Content-Range '{}'",
                                                range, answer.status, CleanText(found, 100)));
    }
    is_short = answer.into_bytes < bytes;
    return absl::OkStatus();
  };
  const absl::StatusOr<Said> said = Ask("read", key, std::move(request), check);
  if (!said.ok()) return said.status();
  if (said->answer.status == 416 || (said->is_ok() && is_short)) {
    return OutOfRange(key, offset, bytes);
  }
  return said->is_ok() ? absl::OkStatus() : Refusal("read", key, *said);
}

absl::Status S3Client::CheckTakenBy(std::string_view what, const std::string& key,
                                    const std::string& writer, const Said& said) {
  // Also where nothing was asked again here: libcurl does so where a connection ends unanswered.
  const absl::StatusOr<Object> object = Head(key);
  if (!object.ok() && said.may_have_happened) return object.status();
  return object.ok() && object->writer == writer ? absl::OkStatus() : Refusal(what, key, said);
}

absl::Status S3Client::Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc,
                           const std::string& writer) {
  HttpRequest request = Request("PUT", key);
  request.body = bytes;
  const std::string checksum = S3Checksum(crc);
  request.headers = {{"if-none-match", "*"},
                     {kChecksumHeader, checksum},
                     {kWriterHeader, writer},
                     {"content-type", "application/octet-stream"}};
  const absl::StatusOr<Said> said =
      Ask("write", key, std::move(request), [&](const HttpAnswer& answer) -> absl::Status {
        const absl::Status status = CheckStored(answer, checksum);
        // It has the name now: the next attempt would be told that it is taken, by this one.
        return status.ok() ? status : absl::DataLossError(status.message());
      });
  if (!said.ok()) return said.status();
  if (said->is_ok()) return absl::OkStatus();
  if (said->answer.status == 412) return CheckTakenBy("write", key, writer, *said);
  return Refusal("write", key, *said);
}

absl::Status S3Client::Delete(const std::string& key) {
  const absl::StatusOr<Said> said = Ask("remove", key, Request("DELETE", key));
  if (!said.ok()) return said.status();
  return said->is_ok() ? absl::OkStatus() : Refusal("remove", key, *said);
}

absl::StatusOr<S3ObjectPage> S3Client::ListObjects(const std::string& prefix,
                                                   const std::string& next, uint64_t entries_max) {
  HttpRequest request = Request("GET", "");
  request.text_bytes_max = kPageBytesMax;
  request.query = {
      {"list-type", "2"}, {"max-keys", std::to_string(entries_max)}, {"prefix", prefix}};
  if (!next.empty()) request.query.emplace_back("continuation-token", next);
  absl::StatusOr<S3ObjectPage> page = absl::UnavailableError("");
  const absl::StatusOr<Said> said =
      Ask("list", prefix, std::move(request), [&](const HttpAnswer& answer) {
        page = ParseS3Objects(answer.text);
        return page.status();
      });
  if (!said.ok()) return said.status();
  if (!said->is_ok()) return Refusal("list", prefix, *said);
  return page;
}

absl::StatusOr<std::string> S3Client::BeginUpload(const std::string& key,
                                                  const std::string& writer) {
  HttpRequest request = Request("POST", key);
  request.query = {{"uploads", ""}};
  request.headers = {{"x-amz-checksum-algorithm", "CRC32C"},
                     {kChecksumKindHeader, "FULL_OBJECT"},
                     {kWriterHeader, writer}};
  absl::StatusOr<std::string> upload = absl::UnavailableError("");
  const absl::StatusOr<Said> said =
      Ask("begin to write", key, std::move(request), [&](const HttpAnswer& answer) {
        upload = ParseS3UploadId(answer.text);
        return upload.status();
      });
  if (!said.ok()) return said.status();
  if (!said->is_ok()) return Refusal("begin to write", key, *said);
  return upload;
}

absl::StatusOr<S3Part> S3Client::PutPart(const std::string& key, const std::string& upload,
                                         uint64_t number, std::span<const std::byte> bytes,
                                         uint32_t crc) {
  const std::string what = fmt::format("write part {} of", number);
  HttpRequest request = Request("PUT", key);
  request.body = bytes;
  request.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}};
  S3Part part{.number = number, .etag = "", .crc32c = S3Checksum(crc)};
  request.headers = {{kChecksumHeader, part.crc32c}};
  const absl::StatusOr<Said> said =
      Ask(what, key, std::move(request), [&](const HttpAnswer& answer) {
        part.etag = HeaderOf(answer, "etag");
        absl::Status status = CheckStored(answer, part.crc32c);
        return status.ok() ? CheckEtag(answer) : status;
      });
  if (!said.ok()) return said.status();
  if (said->is_ok()) return part;
  if (said->error.code == "NoSuchUpload") {
    return absl::AbortedError(fmt::format(
        "{} '{}': it was taken for one that a dead writer left behind", what, Describe(key)));
  }
  return Refusal(what, key, *said);
}

absl::Status S3Client::CompleteUpload(const std::string& key, const std::string& upload,
                                      const std::vector<S3Part>& parts, uint64_t bytes,
                                      uint32_t crc, const std::string& writer) {
  constexpr std::string_view kWhat = "complete";
  const std::string checksum = S3Checksum(crc);
  const std::string text = CompletionText(parts);
  HttpRequest request = Request("POST", key);
  request.body = BytesOf(text);
  request.query = {{"uploadId", upload}};
  request.headers = {{"if-none-match", "*"},
                     {kChecksumHeader, checksum},
                     {kChecksumKindHeader, "FULL_OBJECT"},
                     {"x-amz-mp-object-size", std::to_string(bytes)}};
  // Servers put many parts together before they answer.
  request.within = kLargeWithin;
  const absl::StatusOr<Said> said =
      Ask(kWhat, key, std::move(request), [&](const HttpAnswer& answer) -> absl::Status {
        const absl::StatusOr<std::string> found = ParseS3Completed(answer.text);
        if (!found.ok()) return found.status();
        if (found->empty() || *found == checksum) return absl::OkStatus();
        return absl::DataLossError(
            fmt::format("needed bytes of CRC32C {}, found {}", checksum, CleanText(*found, 100)));
      });
  if (!said.ok()) return said.status();
  if (said->is_ok()) return absl::OkStatus();
  if (said->answer.status == 412) return CheckTakenBy(kWhat, key, writer, *said);
  if (said->error.code != "NoSuchUpload") return Refusal(kWhat, key, *said);
  const absl::StatusOr<Object> object = Head(key);
  if (object.ok() && object->writer == writer) return absl::OkStatus();
  return absl::AbortedError(fmt::format(
      "{} '{}': it was taken for one that a dead writer left behind", kWhat, Describe(key)));
}

absl::Status S3Client::AbortUpload(const std::string& key, const std::string& upload) {
  HttpRequest request = Request("DELETE", key);
  request.query = {{"uploadId", upload}};
  request.within = kAbortWithin;
  const absl::StatusOr<Said> said = Ask("give up", key, std::move(request), kAny, kAbortAttempts);
  if (!said.ok()) return said.status();
  if (said->is_ok() || said->error.code == "NoSuchUpload") return absl::OkStatus();
  return Refusal("give up", key, *said);
}

absl::StatusOr<S3UploadPage> S3Client::ListUploads(const std::string& prefix,
                                                   const S3UploadPage& after) {
  HttpRequest request = Request("GET", "");
  request.text_bytes_max = kPageBytesMax;
  request.query = {{"uploads", ""}, {"prefix", prefix}};
  if (!after.next_key.empty()) request.query.emplace_back("key-marker", after.next_key);
  if (!after.next_id.empty()) request.query.emplace_back("upload-id-marker", after.next_id);
  absl::StatusOr<S3UploadPage> page = absl::UnavailableError("");
  const absl::StatusOr<Said> said =
      Ask("list what is under way of", prefix, std::move(request), [&](const HttpAnswer& answer) {
        page = ParseS3Uploads(answer.text);
        return page.status();
      });
  if (!said.ok()) return said.status();
  if (!said->is_ok()) return Refusal("list what is under way of", prefix, *said);
  return page;
}

absl::StatusOr<S3PartPage> S3Client::ListParts(const S3Upload& upload, const std::string& next) {
  HttpRequest request = Request("GET", upload.key);
  request.text_bytes_max = kPageBytesMax;
  request.query = {{"uploadId", upload.id}};
  if (!next.empty()) request.query.emplace_back("part-number-marker", next);
  absl::StatusOr<S3PartPage> page = absl::UnavailableError("");
  const absl::StatusOr<Said> said =
      Ask("list the parts of", upload.key, std::move(request), [&](const HttpAnswer& answer) {
        page = ParseS3Parts(answer.text);
        return page.status();
      });
  if (!said.ok()) return said.status();
  if (!said->is_ok()) return Refusal("list the parts of", upload.key, *said);
  return page;
}

}  // namespace unreft::durable
