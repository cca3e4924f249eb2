#include "durable/s3_credentials.h"

#include <absl/strings/ascii.h>
#include <absl/time/time.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/text.h"

namespace unreft::durable {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::minutes kRenewBefore(5);
constexpr std::chrono::seconds kLocalWithin(3);
constexpr uint64_t kTextBytesMaxOfLocal = 64 << 10;
constexpr size_t kSecretBytesMax = 16 << 10;
constexpr const char* kOfContainers = "http://169.254.170.2";
constexpr const char* kOfInstances = "http://169.254.169.254";

// What goes into a header.
bool IsPlain(std::string_view text) {
  return text.size() <= kSecretBytesMax &&
         std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isgraph(c); });
}

absl::Status CheckKeys(const S3Keys& keys, std::string_view from) {
  if (!keys.id.empty() && !keys.secret.empty() && IsPlain(keys.id) && IsPlain(keys.secret) &&
      IsPlain(keys.session_token)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      fmt::format("credentials for S3 of {}: needed a key's id and its secret, without spaces or "
                  "control characters",
                  from));
}

// Metadata is not asked of anybody else: what it says is sent back as a secret.
bool IsContainerEndpoint(const std::string& url) {
  if (url.starts_with("https://")) return true;
  for (const char* const host : {kOfContainers, "http://169.254.170.23", "http://127.0.0.1",
                                 "http://localhost", "http://[fd00:ec2::23]", "http://[::1]"}) {
    if (!url.starts_with(host)) continue;
    const std::string rest = url.substr(std::string(host).size());
    if (rest.empty() || rest.front() == '/' || rest.front() == ':') return true;
  }
  return false;
}

}  // namespace

S3Credentials::S3Credentials(AwsEnvironment environment, HttpSender& sender,
                             std::function<WallTime()> now)
    : environment_(std::move(environment)), sender_(sender), now_(std::move(now)) {}

absl::StatusOr<S3Keys> S3Credentials::Get() {
  std::lock_guard lock(mutex_);
  if (found_ && (!found_->until || now_() + kRenewBefore < *found_->until)) return found_->keys;
  absl::StatusOr<Found> found = Find();
  if (found.ok()) {
    found_ = *std::move(found);
    return found_->keys;
  }
  // Those at hand are good a little longer.
  if (found_ && now_() < *found_->until) return found_->keys;
  return found.status();
}

void S3Credentials::Forget() {
  std::lock_guard lock(mutex_);
  found_.reset();
}

absl::StatusOr<S3Credentials::Found> S3Credentials::Find() const {
  const auto variable = [&](const char* name) { return environment_.variable(name); };
  Found found;
  found.keys = {.id = variable("AWS_ACCESS_KEY_ID"),
                .secret = variable("AWS_SECRET_ACCESS_KEY"),
                .session_token = variable("AWS_SESSION_TOKEN")};
  if (!found.keys.id.empty() || !found.keys.secret.empty()) {
    if (absl::Status status =
            CheckKeys(found.keys, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN");
        !status.ok()) {
      return status;
    }
    return found;
  }
  const absl::StatusOr<AwsProfile> profile = ReadAwsProfile(environment_);
  if (!profile.ok()) return profile.status();
  const std::string of_profile =
      fmt::format("the profile '{}' in {}", CleanText(profile->name, 100), profile->looked_in);
  found.keys = {.id = profile->Value("aws_access_key_id"),
                .secret = profile->Value("aws_secret_access_key"),
                .session_token = profile->Value("aws_session_token")};
  if (!found.keys.id.empty() || !found.keys.secret.empty()) {
    if (absl::Status status = CheckKeys(found.keys, of_profile); !status.ok()) return status;
    return found;
  }
  for (const char* const key : {"credential_process", "role_arn", "sso_session", "sso_start_url"}) {
    if (profile->Value(key).empty()) continue;
    return absl::FailedPreconditionError(
        fmt::format("credentials for S3: {} has {}, which is not read here: needed "
                    "aws_access_key_id and aws_secret_access_key, or the variables of the "
                    "environment (`aws configure export-credentials --format env` prints them)",
                    of_profile, key));
  }
  if (!variable("AWS_WEB_IDENTITY_TOKEN_FILE").empty()) {
    return absl::FailedPreconditionError(
        "credentials for S3: AWS_WEB_IDENTITY_TOKEN_FILE is set, and is not read here: needed "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the endpoint of a container "
        "(on EKS: Pod Identity)");
  }
  if (const std::string path = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty()) {
    return FromContainer(kOfContainers + path);
  }
  if (const std::string url = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"); !url.empty()) {
    return FromContainer(url);
  }
  std::string why = "AWS_EC2_METADATA_DISABLED is set";
  if (absl::AsciiStrToLower(variable("AWS_EC2_METADATA_DISABLED")) != "true") {
    absl::StatusOr<Found> of_instance = FromInstance();
    if (of_instance.ok()) return of_instance;
    why = std::string(of_instance.status().message());
  }
  return absl::FailedPreconditionError(fmt::format(
      "no credentials for S3: looked for AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this "
      "daemon's environment, {}, AWS_CONTAINER_CREDENTIALS_FULL_URI and _RELATIVE_URI, and the "
      "metadata service of an instance ({})",
      of_profile, why));
}

absl::StatusOr<std::string> S3Credentials::Ask(HttpRequest request) const {
  request.within = kLocalWithin;
  request.text_bytes_max = kTextBytesMaxOfLocal;
  absl::StatusOr<HttpAnswer> answer = sender_.Send(request);
  if (!answer.ok()) return answer.status();
  if (answer->status == 200 && !answer->has_too_much) return std::move(answer->text);
  return absl::UnavailableError(
      fmt::format("{} {}: answered {}", request.method, request.url, answer->status));
}

namespace {

// What both services answer; nothing of it is shown.
absl::StatusOr<std::pair<S3Keys, std::optional<S3Credentials::WallTime>>> ParseKeys(
    const std::string& text, const std::string& from) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto value = [&](const char* key) {
    if (!json.is_object()) return std::string();
    const auto found = json.find(key);
    return found == json.end() || !found->is_string() ? std::string() : found->get<std::string>();
  };
  const S3Keys keys{.id = value("AccessKeyId"),
                    .secret = value("SecretAccessKey"),
                    .session_token = value("Token")};
  if (absl::Status status = CheckKeys(keys, from); !status.ok()) return status;
  std::optional<S3Credentials::WallTime> until;
  absl::Time time;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, value("Expiration"), &time, &error)) {
    until = absl::ToChronoTime(time);
  }
  return std::pair(keys, until);
}

}  // namespace

absl::StatusOr<S3Credentials::Found> S3Credentials::FromContainer(const std::string& url) const {
  if (!IsContainerEndpoint(url) || !IsPlain(url)) {
    return absl::FailedPreconditionError(
        fmt::format("AWS_CONTAINER_CREDENTIALS_FULL_URI: needed https, or an address of this host "
                    "or of its container service, found '{}'",
                    CleanText(url, 200)));
  }
  HttpRequest request{.method = "GET", .url = url};
  std::string token = environment_.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file = environment_.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) {
    const absl::StatusOr<std::string> text = environment_.read_file(file);
    if (!text.ok()) {
      return absl::FailedPreconditionError(
          fmt::format("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: {}", text.status().message()));
    }
    token = std::string(absl::StripAsciiWhitespace(*text));
  }
  if (!token.empty()) {
    if (!IsPlain(token)) {
      return absl::FailedPreconditionError(
          "AWS_CONTAINER_AUTHORIZATION_TOKEN: needed a token without spaces or control characters");
    }
    request.headers.emplace_back("authorization", token);
  }
  const absl::StatusOr<std::string> text = Ask(std::move(request));
  if (!text.ok()) return text.status();
  auto keys = ParseKeys(*text, url);
  if (!keys.ok()) return keys.status();
  return Found{std::move(keys->first), keys->second};
}

absl::StatusOr<S3Credentials::Found> S3Credentials::FromInstance() const {
  std::string base = environment_.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (base.empty()) base = kOfInstances;
  while (base.ends_with('/')) base.pop_back();
  const absl::StatusOr<std::string> token =
      Ask({.method = "PUT",
           .url = base + "/latest/api/token",
           .headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}}});
  if (!token.ok()) return token.status();
  if (!IsPlain(*token)) return absl::UnavailableError(base + ": its token is not one");
  const std::string roles = base + "/latest/meta-data/iam/security-credentials/";
  const std::vector<std::pair<std::string, std::string>> headers = {
      {"x-aws-ec2-metadata-token", *token}};
  const absl::StatusOr<std::string> listed =
      Ask({.method = "GET", .url = roles, .headers = headers});
  if (!listed.ok()) return listed.status();
  const std::string role(absl::StripAsciiWhitespace(listed->substr(0, listed->find('\n'))));
  const bool is_role =
      !role.empty() && role.size() <= 128 && std::ranges::all_of(role, [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '+' || c == '=' ||
               c == ',' || c == '@';
      });
  if (!is_role) return absl::UnavailableError(roles + ": it names no role");
  const absl::StatusOr<std::string> text =
      Ask({.method = "GET", .url = roles + role, .headers = headers});
  if (!text.ok()) return text.status();
  auto keys = ParseKeys(*text, roles + role);
  if (!keys.ok()) return keys.status();
  return Found{std::move(keys->first), keys->second};
}

}  // namespace unreft::durable
