// What AWS's own tools are configured with, and we are, too: environment variables and the files of
// profiles.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace unreft::durable {

// By which a process sees it, for tests to put another in its place.
struct AwsEnvironment {
  AwsEnvironment();  // the process's own

  std::function<std::string(const char* name)> variable;  // empty: it is not set
  // NotFound; any other failure names the file.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read_file;
};

using AwsSection = std::map<std::string, std::string>;
using AwsSections = std::map<std::string, AwsSection>;  // "default", "profile other"

// Lines that are no assignment, and those that belong to the one above them, are passed over.
AwsSections ParseAwsFile(std::string_view text);

// What both files say of one profile; of what both say, the file of credentials counts.
struct AwsProfile {
  std::string name;
  AwsSection values;
  std::string looked_in;  // "/root/.aws/credentials and /root/.aws/config"

  std::string Value(const std::string& key) const;  // empty: it has none
};

// The one that AWS_PROFILE names, or "default". FailedPrecondition when it is named and in neither
// file.
absl::StatusOr<AwsProfile> ReadAwsProfile(const AwsEnvironment& environment);

// Where the bucket's server is, and how it is spoken to.
struct S3Settings {
  std::string endpoint;  // "https://host:port", without a '/' at its end; empty: AWS's own
  std::string region;
  std::string ca_file;  // AWS_CA_BUNDLE; empty: what the system trusts
};

// FailedPrecondition, naming what was looked for, when they say no region or a bad endpoint.
absl::StatusOr<S3Settings> ReadS3Settings(const AwsEnvironment& environment);

// Where the bucket is asked for: at the server that is named, or else at AWS in that region.
std::string UrlOfBucket(const S3Settings& settings, const std::string& bucket);

}  // namespace unreft::durable
