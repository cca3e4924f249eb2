// CurlSender: HTTP by libcurl, which signs (SigV4), and keeps connections for the next request.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "durable/http_sender.h"

namespace unreft::durable {

struct CurlOptions {
  std::string ca_file;  // certificates to trust; empty: those of the system
  Duration connect_within = std::chrono::seconds(5);
  Duration silent_max = std::chrono::seconds(60);  // without a byte, either way
  // Asked now and then, from the thread that sends.
  std::function<bool()> is_ending;
};

class CurlSender final : public HttpSender {
 public:
  explicit CurlSender(CurlOptions options);
  ~CurlSender() override;

  absl::StatusOr<HttpAnswer> Send(const HttpRequest& request) override;

 private:
  class Handle;

  const CurlOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;  // guarded by mutex_
};

}  // namespace unreft::durable
