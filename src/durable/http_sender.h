// HttpSender: the seam to one exchange of HTTP, as a client of S3 needs it. It signs, sends once
// and hands the answer back; what an answer means, and whether to ask again, is for its user.
//
// Blocking; thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"

namespace unreft::durable {

// Who signs. Never printed.
struct S3Keys {
  std::string id;
  std::string secret;
  std::string session_token;  // empty: none
};

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST or DELETE
  std::string url;     // scheme, host and path, of characters that need no encoding
  std::vector<std::pair<std::string, std::string>> query;  // not encoded, in any order
  std::vector<std::pair<std::string, std::string>> headers;
  std::span<const std::byte> body;  // of PUT and POST
  std::optional<S3Keys> keys;       // signed with these, for this region; none: not signed
  std::string region;

  // Where the body of an answer that says success goes; empty: into its text.
  std::span<std::byte> into;
  uint64_t text_bytes_max = uint64_t{1} << 20;
  // Of all of it; 0: as long as bytes come and go.
  Duration within{};
  bool ends_with_process = false;  // given up when the process is to end
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // by their names in small letters; cut if long
  std::string text;
  uint64_t into_bytes = 0;    // that came into `into`
  bool has_too_much = false;  // more bytes than there was room for: the rest did not come
};

class HttpSender {
 public:
  virtual ~HttpSender() = default;

  // Unavailable when no whole answer came: the request may have been carried out all the same.
  // FailedPrecondition when it makes no sense to ask again, as where the server's certificate is
  // not to be trusted; Cancelled when the process is to end.
  virtual absl::StatusOr<HttpAnswer> Send(const HttpRequest& request) = 0;
};

}  // namespace unreft::durable
