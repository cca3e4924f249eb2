#include "durable/s3_answers.h"

#include <absl/strings/numbers.h>
#include <absl/time/time.h>
#include <fmt/format.h>

#include <memory>
#include <pugixml.hpp>
#include <sstream>

#include "base/text.h"

namespace unreft::durable {
namespace {

constexpr size_t kMessageBytesMax = 500;
constexpr size_t kCodeBytesMax = 100;
constexpr size_t kEntriesMax = 100'000;  // of a page; servers send 1,000
constexpr size_t kChecksumBytesMax = 64;

absl::Status Refuse(std::string_view what) {
  return absl::UnavailableError(fmt::format("the answer is not what S3 sends: {}", what));
}

// The text of an element of that name, which is absent or stands there with text alone.
std::string TextOf(const pugi::xml_node& node, const char* name) {
  return node.child(name).text().get();
}

class Answer {
 public:
  static absl::StatusOr<Answer> Read(std::string_view text, const char* root) {
    Answer answer;
    const pugi::xml_parse_result read = answer.document_->load_buffer(
        text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!read) return Refuse(fmt::format("it is no XML: {}", read.description()));
    answer.root_ = answer.document_->document_element();
    if (std::string_view(answer.root_.name()) == root) return answer;
    // Servers that have answered with success before they were done end with an error.
    if (std::string_view(answer.root_.name()) == "Error") {
      const S3Error error = ParseS3Error(text);
      return absl::UnavailableError(fmt::format("{}: {}", error.code, error.message));
    }
    return Refuse(
        fmt::format("needed {}, found {}", root, CleanText(answer.root_.name(), kCodeBytesMax)));
  }
  const pugi::xml_node& root() const { return root_; }

 private:
  std::unique_ptr<pugi::xml_document> document_ = std::make_unique<pugi::xml_document>();
  pugi::xml_node root_;
};

absl::StatusOr<std::string> Bounded(const pugi::xml_node& node, const char* name,
                                    size_t bytes_max) {
  std::string text = TextOf(node, name);
  if (text.empty() || text.size() > bytes_max) {
    return Refuse(
        fmt::format("needed a {} of 1 to {} bytes, found one of {}", name, bytes_max, text.size()));
  }
  return text;
}

absl::StatusOr<std::chrono::system_clock::time_point> TimeOf(const pugi::xml_node& node,
                                                             const char* name) {
  const std::string text = TextOf(node, name);
  absl::Time time;
  std::string error;
  if (text.size() > kCodeBytesMax || !absl::ParseTime(absl::RFC3339_full, text, &time, &error)) {
    return Refuse(
        fmt::format("needed a time as {}, found '{}'", name, CleanText(text, kCodeBytesMax)));
  }
  return absl::ToChronoTime(time);
}

absl::StatusOr<bool> IsTruncated(const pugi::xml_node& root) {
  const std::string text = TextOf(root, "IsTruncated");
  if (text == "true") return true;
  if (text == "false" || text.empty()) return false;
  return Refuse("IsTruncated is neither true nor false");
}

absl::StatusOr<std::string> Next(const pugi::xml_node& root, const char* name) {
  const absl::StatusOr<bool> has_next = IsTruncated(root);
  if (!has_next.ok()) return has_next.status();
  if (!*has_next) return "";
  return Bounded(root, name, 4 * kS3KeyBytesMax);
}

}  // namespace

S3Error ParseS3Error(std::string_view text) {
  pugi::xml_document document;
  if (!document.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8)) {
    return {};
  }
  const pugi::xml_node root = document.document_element();
  if (std::string_view(root.name()) != "Error") return {};
  return {.code = CleanText(TextOf(root, "Code"), kCodeBytesMax),
          .message = CleanText(TextOf(root, "Message"), kMessageBytesMax),
          .region = CleanText(TextOf(root, "Region"), kCodeBytesMax)};
}

absl::StatusOr<S3ObjectPage> ParseS3Objects(std::string_view text) {
  const absl::StatusOr<Answer> answer = Answer::Read(text, "ListBucketResult");
  if (!answer.ok()) return answer.status();
  S3ObjectPage page;
  for (const pugi::xml_node& node : answer->root().children("Contents")) {
    if (page.objects.size() == kEntriesMax) return Refuse("a page has too many objects");
    S3Object object;
    absl::StatusOr<std::string> key = Bounded(node, "Key", kS3KeyBytesMax);
    if (!key.ok()) return key.status();
    object.key = *std::move(key);
    if (!absl::SimpleAtoi(TextOf(node, "Size"), &object.bytes)) {
      return Refuse(
          fmt::format("needed a Size, found '{}'", CleanText(TextOf(node, "Size"), kCodeBytesMax)));
    }
    page.objects.push_back(std::move(object));
  }
  absl::StatusOr<std::string> next = Next(answer->root(), "NextContinuationToken");
  if (!next.ok()) return next.status();
  page.next = *std::move(next);
  return page;
}

absl::StatusOr<S3UploadPage> ParseS3Uploads(std::string_view text) {
  const absl::StatusOr<Answer> answer = Answer::Read(text, "ListMultipartUploadsResult");
  if (!answer.ok()) return answer.status();
  S3UploadPage page;
  for (const pugi::xml_node& node : answer->root().children("Upload")) {
    if (page.uploads.size() == kEntriesMax) return Refuse("a page has too many uploads");
    absl::StatusOr<std::string> key = Bounded(node, "Key", kS3KeyBytesMax);
    if (!key.ok()) return key.status();
    absl::StatusOr<std::string> id = Bounded(node, "UploadId", kS3UploadIdBytesMax);
    if (!id.ok()) return id.status();
    const auto began = TimeOf(node, "Initiated");
    if (!began.ok()) return began.status();
    page.uploads.push_back({*std::move(key), *std::move(id), *began});
  }
  absl::StatusOr<std::string> next = Next(answer->root(), "NextKeyMarker");
  if (!next.ok()) return next.status();
  page.next_key = *std::move(next);
  page.next_id = TextOf(answer->root(), "NextUploadIdMarker");
  if (page.next_id.size() > kS3UploadIdBytesMax) return Refuse("NextUploadIdMarker is too long");
  return page;
}

absl::StatusOr<S3PartPage> ParseS3Parts(std::string_view text) {
  const absl::StatusOr<Answer> answer = Answer::Read(text, "ListPartsResult");
  if (!answer.ok()) return answer.status();
  S3PartPage page;
  for (const pugi::xml_node& node : answer->root().children("Part")) {
    if (page.written.size() == kEntriesMax) return Refuse("a page has too many parts");
    const auto written = TimeOf(node, "LastModified");
    if (!written.ok()) return written.status();
    page.written.push_back(*written);
  }
  absl::StatusOr<std::string> next = Next(answer->root(), "NextPartNumberMarker");
  if (!next.ok()) return next.status();
  page.next = *std::move(next);
  return page;
}

absl::StatusOr<std::string> ParseS3UploadId(std::string_view text) {
  const absl::StatusOr<Answer> answer = Answer::Read(text, "InitiateMultipartUploadResult");
  if (!answer.ok()) return answer.status();
  return Bounded(answer->root(), "UploadId", kS3UploadIdBytesMax);
}

absl::StatusOr<std::string> ParseS3Completed(std::string_view text) {
  const absl::StatusOr<Answer> answer = Answer::Read(text, "CompleteMultipartUploadResult");
  if (!answer.ok()) return answer.status();
  std::string crc = TextOf(answer->root(), "ChecksumCRC32C");
  if (crc.size() > kChecksumBytesMax) return Refuse("ChecksumCRC32C is too long");
  return crc;
}

std::string CompletionText(const std::vector<S3Part>& parts) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  root.append_attribute("xmlns") = "http://s3.amazonaws.com/doc/2006-03-01/";
  for (const S3Part& part : parts) {
    pugi::xml_node node = root.append_child("Part");
    node.append_child("PartNumber").text() = std::to_string(part.number).c_str();
    node.append_child("ETag").text() = part.etag.c_str();
    node.append_child("ChecksumCRC32C").text() = part.crc32c.c_str();
  }
  std::ostringstream text;
  document.save(text, "", pugi::format_raw);
  return text.str();
}

}  // namespace unreft::durable
