// Who asks a server of S3. Looked for as AWS's own tools do: in the environment, in the profile, at
// the endpoint of a container, at the metadata service of an instance (IMDSv2); the first that has
// some is asked, and what expires is asked for again in time.
//
// No secret is in a message, or printed anywhere. Blocking; thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "durable/aws_environment.h"
#include "durable/http_sender.h"

namespace unreft::durable {

class S3Credentials {
 public:
  using WallTime = std::chrono::system_clock::time_point;

  // `sender` outlives this.
  S3Credentials(AwsEnvironment environment, HttpSender& sender, std::function<WallTime()> now);

  // FailedPrecondition, with all that was looked for, when there are none; Unavailable when who
  // has them does not answer.
  absl::StatusOr<S3Keys> Get();

  // They are looked for again the next time: the server says that they are not good any more.
  void Forget();

 private:
  struct Found {
    S3Keys keys;
    std::optional<WallTime> until;
  };

  absl::StatusOr<Found> Find() const;
  absl::StatusOr<Found> FromContainer(const std::string& url) const;
  absl::StatusOr<Found> FromInstance() const;
  absl::StatusOr<std::string> Ask(HttpRequest request) const;

  const AwsEnvironment environment_;
  HttpSender& sender_;
  const std::function<WallTime()> now_;

  std::mutex mutex_;
  std::optional<Found> found_;  // guarded by mutex_
};

}  // namespace unreft::durable
