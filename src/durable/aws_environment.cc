#include "durable/aws_environment.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/text.h"

namespace unreft::durable {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kShownMax = 250;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(path);
    return absl::ErrnoToStatus(error, fmt::format("read {}", path));
  }
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() <= kFileBytesMax) return text;
  return absl::FailedPreconditionError(
      fmt::format("{}: needed a file of at most {} bytes", path, kFileBytesMax));
}

std::string Stripped(std::string_view text) {
  std::string stripped(text);
  absl::StripAsciiWhitespace(&stripped);
  return stripped;
}

// Of ~/.aws, unless a variable names another.
std::string PathOf(const AwsEnvironment& environment, const char* variable, const char* leaf) {
  if (std::string path = environment.variable(variable); !path.empty()) return path;
  const std::string home = environment.variable("HOME");
  return home.empty() ? "" : fmt::format("{}/.aws/{}", home, leaf);
}

absl::StatusOr<AwsSections> SectionsOf(const AwsEnvironment& environment, const std::string& path) {
  if (path.empty()) return AwsSections();
  const absl::StatusOr<std::string> text = environment.read_file(path);
  if (absl::IsNotFound(text.status())) return AwsSections();
  if (!text.ok()) return text.status();
  return ParseAwsFile(*text);
}

bool IsRegion(std::string_view region) {
  return !region.empty() && region.size() <= 64 && std::ranges::all_of(region, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

bool IsEndpoint(std::string_view endpoint) {
  const bool is_secure = endpoint.starts_with("https://");
  if (!is_secure && !endpoint.starts_with("http://")) return false;
  const std::string_view rest = endpoint.substr(is_secure ? 8 : 7);
  return !rest.empty() && rest.front() != '/' && std::ranges::all_of(rest, [](unsigned char c) {
    return absl::ascii_isalnum(c) ||
           std::string_view("._~:/[]-").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

}  // namespace

AwsEnvironment::AwsEnvironment()
    : variable([](const char* name) {
        const char* const value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
      }),
      read_file(ReadFile) {}

AwsSections ParseAwsFile(std::string_view text) {
  AwsSections sections;
  AwsSection* section = nullptr;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const size_t end = line.find(']');
      section = end == std::string::npos ? nullptr : &sections[Stripped(line.substr(1, end - 1))];
      continue;
    }
    const size_t equals = line.find('=');
    const bool is_of_the_line_above = absl::ascii_isspace(static_cast<unsigned char>(line.front()));
    if (section == nullptr || equals == std::string::npos || is_of_the_line_above) continue;
    (*section)[absl::AsciiStrToLower(Stripped(line.substr(0, equals)))] =
        Stripped(line.substr(equals + 1));
  }
  return sections;
}

std::string AwsProfile::Value(const std::string& key) const {
  const auto found = values.find(key);
  return found == values.end() ? "" : found->second;
}

absl::StatusOr<AwsProfile> ReadAwsProfile(const AwsEnvironment& environment) {
  const std::string named = environment.variable("AWS_PROFILE");
  AwsProfile profile;
  profile.name = named.empty() ? "default" : named;
  const std::string keys = PathOf(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const std::string config = PathOf(environment, "AWS_CONFIG_FILE", "config");
  profile.looked_in =
      fmt::format("{} and {}", CleanText(keys, kShownMax), CleanText(config, kShownMax));
  bool is_there = false;
  const auto add = [&](const AwsSections& sections, const std::string& name) {
    const auto found = sections.find(name);
    if (found == sections.end()) return;
    is_there = true;
    profile.values.insert(found->second.begin(), found->second.end());
  };
  const absl::StatusOr<AwsSections> of_keys = SectionsOf(environment, keys);
  if (!of_keys.ok()) return of_keys.status();
  add(*of_keys, profile.name);
  const absl::StatusOr<AwsSections> of_config = SectionsOf(environment, config);
  if (!of_config.ok()) return of_config.status();
  add(*of_config, profile.name == "default" ? profile.name : "profile " + profile.name);
  if (is_there || named.empty()) return profile;
  return absl::FailedPreconditionError(
      fmt::format("AWS_PROFILE: needed a profile that is there, found '{}', which is not in {}",
                  CleanText(named, kShownMax), profile.looked_in));
}

absl::StatusOr<S3Settings> ReadS3Settings(const AwsEnvironment& environment) {
  const absl::StatusOr<AwsProfile> profile = ReadAwsProfile(environment);
  if (!profile.ok()) return profile.status();
  const auto first_of = [&](std::initializer_list<const char*> variables, const char* key) {
    for (const char* const variable : variables) {
      if (std::string value = environment.variable(variable); !value.empty()) return value;
    }
    return profile->Value(key);
  };
  S3Settings settings;
  settings.ca_file = first_of({"AWS_CA_BUNDLE"}, "ca_bundle");
  settings.endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.empty() && !IsEndpoint(settings.endpoint)) {
    return absl::FailedPreconditionError(
        fmt::format("AWS_ENDPOINT_URL: needed https://HOST:PORT or http://HOST:PORT, found '{}'",
                    CleanText(settings.endpoint, kShownMax)));
  }
  settings.region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  if (settings.region.empty() && !settings.endpoint.empty()) settings.region = "us-east-1";
  if (IsRegion(settings.region)) return settings;
  return absl::FailedPreconditionError(fmt::format(
      "AWS_REGION: needed the region of the bucket, or AWS_ENDPOINT_URL of another server, found "
      "'{}' in AWS_REGION, AWS_DEFAULT_REGION and the profile '{}' of {}",
      CleanText(settings.region, kShownMax), CleanText(profile->name, kShownMax),
      profile->looked_in));
}

std::string UrlOfBucket(const S3Settings& settings, const std::string& bucket) {
  if (!settings.endpoint.empty()) return fmt::format("{}/{}", settings.endpoint, bucket);
  const std::string suffix =
      settings.region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
  // A certificate for all buckets covers no name with a dot in it.
  if (bucket.find('.') != std::string::npos) {
    return fmt::format("https://s3.{}.{}/{}", settings.region, suffix, bucket);
  }
  return fmt::format("https://{}.s3.{}.{}", bucket, settings.region, suffix);
}

}  // namespace unreft::durable
