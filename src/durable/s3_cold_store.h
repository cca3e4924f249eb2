// S3ColdStore: a cold store in a bucket of an object store that speaks S3.
//
// A file is an object, made by a request that takes over no other's key (If-None-Match). A long one
// under way is a multipart upload, which nobody sees until it is completed, and which is all that a
// writer that was killed leaves behind. That no name is a file's and a directory's is looked up
// before a file is made, as S3 has no directories: two that make one of each at the same time may
// both succeed. Of two that remove one file at the same time, both may.
//
// Thread-safe, as the seam says; processes of any number of nodes may share a place.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "durable/cold_store.h"
#include "durable/s3_client.h"

namespace unreft::durable {

struct S3ColdOptions {
  S3Pace pace;                               // with a pause
  uint64_t part_bytes = uint64_t{16} << 20;  // S3 takes none of less than 5 MiB, but the last
  uint64_t page_entries_max = 1000;
  AwsEnvironment environment;
  std::function<std::chrono::system_clock::time_point()> now;
  std::function<bool()> is_ending;  // whether the process is to end
  // Who sends; none: libcurl.
  std::function<std::unique_ptr<HttpSender>(const S3Settings&)> sender;
};

class S3ColdStore final : public ColdStore {
 public:
  // FailedPrecondition when the bucket is not there, or the environment does not say how to reach
  // it; PermissionDenied; Unavailable when the server is away.
  static absl::StatusOr<std::unique_ptr<S3ColdStore>> Open(const S3Place& place,
                                                           S3ColdOptions options, Random random);
  ~S3ColdStore() override;

  absl::StatusOr<std::unique_ptr<ColdFile>> Create(std::string_view name) override;
  absl::Status Put(std::string_view name, std::string_view bytes) override;
  absl::StatusOr<std::string> Get(std::string_view name, uint64_t bytes_max) override;
  absl::Status Read(std::string_view name, uint64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<std::vector<ColdEntry>> List(std::string_view directory) override;
  absl::StatusOr<std::string> Anything(std::string_view directory) override;
  absl::Status Remove(std::string_view name) override;
  absl::StatusOr<uint64_t> RemoveLeftovers(std::string_view directory,
                                           std::chrono::system_clock::time_point before) override;
  std::string Describe() const override;

 private:
  S3ColdStore(const S3Place& place, S3ColdOptions options, S3Settings settings, Random random);

  // InvalidArgument as CheckColdName, and when the key is too long.
  absl::StatusOr<std::string> KeyOf(std::string_view name) const;
  // What all keys in the directory begin with.
  std::string PrefixOf(std::string_view directory) const;
  // The name of a key that begins so; empty when it is no file of a store.
  std::string NameOf(std::string_view key) const;
  // AlreadyExists when it is a directory's name, FailedPrecondition when a file is in its way.
  absl::Status CheckWay(std::string_view name);
  absl::StatusOr<bool> WasTouched(const S3Upload& upload,
                                  std::chrono::system_clock::time_point since);

  const S3ColdOptions options_;
  const std::unique_ptr<HttpSender> sender_;
  S3Credentials credentials_;
  S3Client client_;
};

}  // namespace unreft::durable
