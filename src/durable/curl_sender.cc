#include "durable/curl_sender.h"

#include <absl/strings/ascii.h>
#include <curl/curl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace unreft::durable {
namespace {

constexpr size_t kHeaderBytesMax = 1024;
constexpr size_t kHeadersMax = 100;
constexpr long kBufferBytes = 512 << 10;

// As SigV4 wants it: all but A-Z a-z 0-9 - . _ ~.
std::string Encoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' ||
        c == '~') {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

// What is signed is what is sent: sorted, and each with its '='.
std::string UrlOf(const HttpRequest& request) {
  std::vector<std::pair<std::string, std::string>> query;
  for (const auto& [name, value] : request.query) query.emplace_back(Encoded(name), Encoded(value));
  std::ranges::sort(query);
  std::string url = request.url;
  char before = '?';
  for (const auto& [name, value] : query) {
    url += fmt::format("{}{}={}", before, name, value);
    before = '&';
  }
  return url;
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// What libcurl's functions are called with.
struct Exchange {
  const HttpRequest& request;
  const CurlOptions& options;
  CURL* handle;
  HttpAnswer answer;
  size_t sent = 0;
  bool is_cancelled = false;
};

size_t OnRead(char* into, size_t size, size_t count, void* context) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  const auto left = exchange.request.body.subspan(exchange.sent);
  const size_t bytes = std::min(size * count, left.size());
  if (bytes != 0) std::memcpy(into, left.data(), bytes);
  exchange.sent += bytes;
  return bytes;
}

// Asked for when a connection that was kept turns out to be closed.
int OnSeek(void* context, curl_off_t offset, int origin) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  if (origin != SEEK_SET || offset < 0 ||
      static_cast<uint64_t>(offset) > exchange.request.body.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  exchange.sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t OnHeader(char* bytes, size_t size, size_t count, void* context) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) exchange.answer = HttpAnswer();  // the one before was not the last
  const size_t colon = line.find(':');
  auto& headers = exchange.answer.headers;
  if (colon != std::string_view::npos && headers.size() < kHeadersMax) {
    std::string name(line.substr(0, std::min(colon, kHeaderBytesMax)));
    std::string value(line.substr(colon + 1));
    absl::AsciiStrToLower(&name);
    absl::StripAsciiWhitespace(&value);
    headers[std::move(name)] = value.substr(0, kHeaderBytesMax);
  }
  return line.size();
}

size_t OnBody(char* bytes, size_t size, size_t count, void* context) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  HttpAnswer& answer = exchange.answer;
  size_t length = size * count;
  long status = 0;
  curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
  if (!exchange.request.into.empty() && status >= 200 && status < 300) {
    const auto room = exchange.request.into.subspan(answer.into_bytes);
    answer.has_too_much = length > room.size();
    if (answer.has_too_much) return 0;
    std::memcpy(room.data(), bytes, length);
    answer.into_bytes += length;
    return length;
  }
  const uint64_t room = exchange.request.text_bytes_max - answer.text.size();
  answer.has_too_much = length > room;
  if (answer.has_too_much) return 0;
  answer.text.append(bytes, length);
  return length;
}

int OnProgress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  exchange.is_cancelled = exchange.request.ends_with_process && exchange.options.is_ending &&
                          exchange.options.is_ending();
  return exchange.is_cancelled ? 1 : 0;
}

// Certificates that the system trusts, where libcurl was built for another one than it runs on.
std::string SystemCaFile() {
  const curl_version_info_data* const built = curl_version_info(CURLVERSION_NOW);
  if (built->cainfo == nullptr || access(built->cainfo, R_OK) == 0) return "";
  for (const char* const file :
       {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    if (access(file, R_OK) == 0) return file;
  }
  return "";
}

CurlOptions WithCaFile(CurlOptions options) {
  if (options.ca_file.empty()) options.ca_file = SystemCaFile();
  return options;
}

bool IsHopeless(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_ISSUER_ERROR:
      return true;
    default:
      return false;
  }
}

long Milliseconds(Duration duration) {
  return static_cast<long>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

}  // namespace

class CurlSender::Handle {
 public:
  Handle() : curl_(curl_easy_init()) { UNREFT_CHECK(curl_ != nullptr, "libcurl has no memory"); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { curl_easy_cleanup(curl_); }

  absl::StatusOr<HttpAnswer> Send(const HttpRequest& request, const CurlOptions& options) {
    curl_easy_reset(curl_);  // its connections stay
    Exchange exchange{.request = request, .options = options, .handle = curl_, .answer = {}};
    SetCommon(exchange);
    const std::string url = UrlOf(request);
    curl_easy_setopt(curl_, CURLOPT_URL, url.c_str());
    const std::unique_ptr<curl_slist, FreeList> headers = SetMethodAndHeaders(exchange);
    std::string provider;
    if (request.keys) {
      provider = fmt::format("aws:amz:{}:s3", request.region);
      curl_easy_setopt(curl_, CURLOPT_AWS_SIGV4, provider.c_str());
      curl_easy_setopt(curl_, CURLOPT_USERNAME, request.keys->id.c_str());
      curl_easy_setopt(curl_, CURLOPT_PASSWORD, request.keys->secret.c_str());
    } else {
      curl_easy_setopt(curl_, CURLOPT_NOPROXY, "*");  // services of this host
    }
    char why[CURL_ERROR_SIZE] = {};
    curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, why);
    const CURLcode code = curl_easy_perform(curl_);
    curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, nullptr);
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    HttpAnswer& answer = exchange.answer;
    answer.status = static_cast<int>(status);
    if (exchange.is_cancelled) return absl::CancelledError("the process is to end");
    if (code == CURLE_OK || answer.has_too_much) return std::move(answer);
    std::string text = fmt::format("{} {}: {}", request.method, request.url,
                                   CleanText(why[0] != 0 ? why : curl_easy_strerror(code)));
    if (code == CURLE_PEER_FAILED_VERIFICATION) {
      text += "; AWS_CA_BUNDLE names a file of other certificates to trust";
    }
    return IsHopeless(code) ? absl::FailedPreconditionError(text) : absl::UnavailableError(text);
  }

 private:
  void SetCommon(Exchange& exchange) {
    const CurlOptions& options = exchange.options;
    curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl_, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT_MS, Milliseconds(options.connect_within));
    curl_easy_setopt(curl_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl_, CURLOPT_LOW_SPEED_TIME, Milliseconds(options.silent_max) / 1000);
    curl_easy_setopt(curl_, CURLOPT_TIMEOUT_MS, Milliseconds(exchange.request.within));
    curl_easy_setopt(curl_, CURLOPT_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(curl_, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    if (!options.ca_file.empty()) {
      curl_easy_setopt(curl_, CURLOPT_CAINFO, options.ca_file.c_str());
    }
    curl_easy_setopt(curl_, CURLOPT_HEADERFUNCTION, OnHeader);
    curl_easy_setopt(curl_, CURLOPT_HEADERDATA, &exchange);
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, OnBody);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, &exchange);
    curl_easy_setopt(curl_, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl_, CURLOPT_XFERINFOFUNCTION, OnProgress);
    curl_easy_setopt(curl_, CURLOPT_XFERINFODATA, &exchange);
  }

  std::unique_ptr<curl_slist, FreeList> SetMethodAndHeaders(Exchange& exchange) {
    const HttpRequest& request = exchange.request;
    std::unique_ptr<curl_slist, FreeList> headers;
    const auto add = [&](const std::string& name, const std::string& value) {
      curl_slist* const longer =
          curl_slist_append(headers.get(), fmt::format("{}: {}", name, value).c_str());
      UNREFT_CHECK(longer != nullptr, "libcurl has no memory");
      (void)headers.release();
      headers.reset(longer);
    };
    for (const auto& [name, value] : request.headers) add(name, value);
    if (request.keys && !request.keys->session_token.empty()) {
      add("x-amz-security-token", request.keys->session_token);
    }
    if (request.method == "HEAD") {
      curl_easy_setopt(curl_, CURLOPT_NOBODY, 1L);
    } else if (request.method == "PUT") {
      curl_easy_setopt(curl_, CURLOPT_UPLOAD, 1L);
      curl_easy_setopt(curl_, CURLOPT_READFUNCTION, OnRead);
      curl_easy_setopt(curl_, CURLOPT_READDATA, &exchange);
      curl_easy_setopt(curl_, CURLOPT_SEEKFUNCTION, OnSeek);
      curl_easy_setopt(curl_, CURLOPT_SEEKDATA, &exchange);
      curl_easy_setopt(curl_, CURLOPT_INFILESIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
    } else if (request.method == "POST") {
      curl_easy_setopt(curl_, CURLOPT_POST, 1L);
      curl_easy_setopt(curl_, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(
          curl_, CURLOPT_POSTFIELDS,
          request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
      add("content-type", "application/xml");
    } else if (request.method != "GET") {
      curl_easy_setopt(curl_, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    // The checksum of what is sent goes along: TLS and it protect the bytes, not their hash.
    if (request.keys && (request.method == "PUT" || request.method == "POST")) {
      add("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
    }
    curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers.get());
    return headers;
  }

  CURL* const curl_;
};

CurlSender::CurlSender(CurlOptions options) : options_(WithCaFile(std::move(options))) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  UNREFT_CHECK(ready == CURLE_OK, "libcurl cannot begin");
}

CurlSender::~CurlSender() = default;

absl::StatusOr<HttpAnswer> CurlSender::Send(const HttpRequest& request) {
  std::unique_ptr<Handle> handle;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      handle = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (handle == nullptr) handle = std::make_unique<Handle>();
  absl::StatusOr<HttpAnswer> answer = handle->Send(request, options_);
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
  return answer;
}

}  // namespace unreft::durable
