// A certificate authority of one's own, and the certificates of a job's nodes and meta store, as
// transport and meta store want them (docs/operations.md) and `unreft up --tls-dir` finds them.
// Blocking, stateless.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace unreft::cli {

struct CertificateRequest {
  std::string directory;  // absolute; made if it is absent
  std::string job;
  uint64_t nodes = 1;              // spares included
  std::vector<std::string> hosts;  // names and IP addresses of the meta store
  int days = 365;                  // of certificates; of the authority ten times as many
  bool renew = false;              // make certificates anew that are there
};

struct CertificateResult {
  bool made_authority = false;
  std::vector<std::string> made;  // "meta", "node0", ...
  std::vector<std::string> kept;
};

// Makes ca.pem and ca.key unless both are there, and of meta store and nodes NAME.pem and NAME.key,
// as far as they are absent or `renew` says so; each replaces an old one by rename. Keys have mode
// 0600, whatever the umask. InvalidArgument: a host that is neither name nor address;
// FailedPrecondition: an authority without its key; PermissionDenied: others can write to the
// directory, or read the key of the authority.
absl::StatusOr<CertificateResult> MakeCertificates(const CertificateRequest& request);

}  // namespace unreft::cli
