#include "durable/s3_cold_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "durable/curl_sender.h"
#include "durable/s3_cold_file.h"

namespace unreft::durable {
namespace {

constexpr size_t kPagesMax = 100'000;  // of a server that never comes to an end

std::unique_ptr<HttpSender> SenderOf(const S3ColdOptions& options, const S3Settings& settings) {
  if (options.sender) return options.sender(settings);
  CurlOptions curl;
  curl.ca_file = settings.ca_file;
  curl.is_ending = options.is_ending;
  return std::make_unique<CurlSender>(std::move(curl));
}

}  // namespace

absl::StatusOr<std::unique_ptr<S3ColdStore>> S3ColdStore::Open(const S3Place& place,
                                                               S3ColdOptions options,
                                                               Random random) {
  absl::StatusOr<S3Settings> settings = ReadS3Settings(options.environment);
  if (!settings.ok()) return settings.status();
  std::unique_ptr<S3ColdStore> store(
      new S3ColdStore(place, std::move(options), *std::move(settings), random));
  // Of an error that has no words a HEAD would be.
  const auto any = store->client_.ListObjects(store->PrefixOf(""), "", 1);
  if (!any.ok()) return any.status();
  return store;
}

S3ColdStore::S3ColdStore(const S3Place& place, S3ColdOptions options, S3Settings settings,
                         Random random)
    : options_(std::move(options)),
      sender_(SenderOf(options_, settings)),
      credentials_(options_.environment, *sender_, options_.now),
      client_(place, std::move(settings), *sender_, credentials_, options_.pace, random) {}

S3ColdStore::~S3ColdStore() = default;

std::string S3ColdStore::PrefixOf(std::string_view directory) const {
  std::string prefix = client_.place().prefix;
  if (!prefix.empty()) prefix += '/';
  if (!directory.empty()) prefix += fmt::format("{}/", directory);
  return prefix;
}

absl::StatusOr<std::string> S3ColdStore::KeyOf(std::string_view name) const {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  std::string key = PrefixOf("") + std::string(name);
  if (key.size() <= kS3KeyBytesMax) return key;
  return absl::InvalidArgumentError(
      fmt::format("'{}/{}': needed a key of at most {} bytes, found {}", Describe(), name,
                  kS3KeyBytesMax, key.size()));
}

std::string S3ColdStore::NameOf(std::string_view key) const {
  const std::string prefix = PrefixOf("");
  if (!key.starts_with(prefix)) return "";
  key.remove_prefix(prefix.size());
  return CheckColdName(key).ok() ? std::string(key) : "";
}

absl::Status S3ColdStore::CheckWay(std::string_view name) {
  const auto below = client_.ListObjects(PrefixOf(name), "", 1);
  if (!below.ok()) return below.status();
  if (!below->objects.empty()) {
    return absl::AlreadyExistsError(fmt::format("write '{}/{}': it is a directory, of '{}'",
                                                Describe(), name,
                                                client_.Describe(below->objects.front().key)));
  }
  for (size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1)) {
    const std::string above = PrefixOf("") + std::string(name.substr(0, slash));
    const auto found = client_.Head(above);
    if (absl::IsNotFound(found.status())) continue;
    if (!found.ok()) return found.status();
    return absl::FailedPreconditionError(
        fmt::format("write '{}/{}': '{}' is a file, needed a directory", Describe(), name,
                    client_.Describe(above)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ColdFile>> S3ColdStore::Create(std::string_view name) {
  absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  if (absl::Status status = CheckWay(name); !status.ok()) return status;
  const auto found = client_.Head(*key);
  if (found.ok()) {
    return absl::AlreadyExistsError(
        fmt::format("write '{}': it is there already", client_.Describe(*key)));
  }
  if (!absl::IsNotFound(found.status())) return found.status();
  return BeginS3ColdFile(client_, *std::move(key), options_.part_bytes);
}

absl::Status S3ColdStore::Put(std::string_view name, std::string_view bytes) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  if (absl::Status status = CheckWay(name); !status.ok()) return status;
  const auto data = std::as_bytes(std::span(bytes));
  return client_.Put(*key, data, Crc32c(data), client_.NewWriter());
}

absl::StatusOr<std::string> S3ColdStore::Get(std::string_view name, uint64_t bytes_max) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  return key.ok() ? client_.Get(*key, bytes_max) : key.status();
}

absl::Status S3ColdStore::Read(std::string_view name, uint64_t offset, std::span<std::byte> into) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  if (!into.empty()) return client_.Read(*key, offset, into);
  const auto found = client_.Head(*key);
  if (!found.ok()) return found.status();
  if (offset <= found->bytes) return absl::OkStatus();
  return absl::OutOfRangeError(fmt::format("read '{}': 0 bytes at {} of an object of {} bytes",
                                           client_.Describe(*key), offset, found->bytes));
}

absl::StatusOr<std::vector<ColdEntry>> S3ColdStore::List(std::string_view directory) {
  if (absl::Status status = CheckColdDirectory(directory); !status.ok()) return status;
  const std::string prefix = PrefixOf(directory);
  std::vector<ColdEntry> entries;
  std::string next;
  for (size_t pages = 0; pages < kPagesMax; ++pages) {
    const auto page = client_.ListObjects(prefix, next, options_.page_entries_max);
    if (!page.ok()) return page.status();
    for (const S3Object& object : page->objects) {
      std::string name = object.key.starts_with(prefix) ? NameOf(object.key) : "";
      if (!name.empty()) entries.push_back({std::move(name), object.bytes});
    }
    if (page->next.empty()) {
      std::ranges::sort(entries, {}, &ColdEntry::name);
      return entries;
    }
    next = page->next;
  }
  return absl::UnavailableError(
      fmt::format("list '{}': the server has not come to an end after {} pages",
                  client_.Describe(prefix), kPagesMax));
}

absl::StatusOr<std::string> S3ColdStore::Anything(std::string_view directory) {
  if (absl::Status status = CheckColdDirectory(directory); !status.ok()) return status;
  const std::string prefix = PrefixOf(directory);
  const auto page = client_.ListObjects(prefix, "", 2);
  if (!page.ok()) return page.status();
  for (const S3Object& object : page->objects) {
    // Of the directory itself some consoles make an object.
    if (object.key.starts_with(prefix) && object.key != prefix) return object.key;
  }
  return "";
}

absl::Status S3ColdStore::Remove(std::string_view name) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  // The answer of a removal does not say whether there was anything.
  if (const auto found = client_.Head(*key); !found.ok()) return found.status();
  if (absl::Status status = client_.Delete(*key); !status.ok()) return status;
  if (client_.IsOfAws()) return absl::OkStatus();
  // Some servers have directories of their own, which keep their names while they are empty; one
  // that is not stays.
  for (size_t slash = name.rfind('/'); slash != name.npos && slash != 0;
       slash = name.rfind('/', slash - 1)) {
    if (!client_.Delete(PrefixOf(name.substr(0, slash))).ok()) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> S3ColdStore::WasTouched(const S3Upload& upload,
                                             std::chrono::system_clock::time_point since) {
  if (upload.began >= since) return true;
  std::string next;
  for (size_t pages = 0; pages < kPagesMax; ++pages) {
    const auto page = client_.ListParts(upload, next);
    if (absl::IsNotFound(page.status())) return true;  // it is gone by now
    if (!page.ok()) return page.status();
    if (std::ranges::any_of(page->written, [&](auto at) { return at >= since; })) return true;
    if (page->next.empty()) return false;
    next = page->next;
  }
  return true;
}

absl::StatusOr<uint64_t> S3ColdStore::RemoveLeftovers(
    std::string_view directory, std::chrono::system_clock::time_point before) {
  if (absl::Status status = CheckColdDirectory(directory); !status.ok()) return status;
  const std::string prefix = PrefixOf(directory);
  std::vector<S3Upload> uploads;
  S3UploadPage page;
  for (size_t pages = 0; pages == 0 || (!page.next_key.empty() && pages < kPagesMax); ++pages) {
    absl::StatusOr<S3UploadPage> next = client_.ListUploads(prefix, page);
    if (!next.ok()) return next.status();
    page = *std::move(next);
    for (S3Upload& upload : page.uploads) {
      if (!upload.key.starts_with(prefix) || NameOf(upload.key).empty()) continue;
      uploads.push_back(std::move(upload));
    }
  }
  uint64_t removed = 0;
  for (const S3Upload& upload : uploads) {
    const absl::StatusOr<bool> is_alive = WasTouched(upload, before);
    if (!is_alive.ok()) return is_alive.status();
    if (*is_alive) continue;
    const absl::Status status = client_.AbortUpload(upload.key, upload.id);
    if (!status.ok()) return status;
    ++removed;
  }
  return removed;
}

std::string S3ColdStore::Describe() const { return client_.place().Text(); }

}  // namespace unreft::durable
