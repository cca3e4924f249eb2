// The PEM files of one side - authorities, certificate, key -, looked at before they are used: what
// its peers would refuse is said where the files lie, not in each handshake. And the check of what
// a peer shows, by the same rules.
//
// Functions without state, and a pair that does not change: thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace unreft {

// What a side does with its certificate, which may be limited to that.
enum class TlsUse { kConnects, kListens, kBoth };

struct TlsFiles {
  std::string ca;    // who signs the peers, and this side too; one or more
  std::string cert;  // the own certificate, and those between it and the authority
  std::string key;
};

// What was read from the files at one moment.
class TlsPair {
 public:
  // PermissionDenied for a key that others can read. InvalidArgument, naming the file: one that
  // cannot be read, a key of another certificate, a certificate that the authorities have not
  // signed, that is not valid now or not for that use, or one without `uri`, unless that is empty.
  static absl::StatusOr<std::shared_ptr<const TlsPair>> Read(const TlsFiles& files, TlsUse use,
                                                             const std::string& uri);
  virtual ~TlsPair() = default;

  // Unauthenticated, with the peer's subject and the cause: what it shows was not signed by the
  // authorities of the pair, or is not valid now. `chain` may have the certificate itself, too.
  virtual absl::Status CheckPeer(TlsUse peers_use, std::string_view certificate,
                                 std::string_view chain) const = 0;

  virtual const std::string& key_and_chain() const = 0;  // PEM
  virtual const std::string& authorities() const = 0;    // PEM
  virtual const std::string& serial() const = 0;         // in hexadecimal digits
  virtual int64_t expires_s() const = 0;                 // since 1970
};

namespace tls_files {

// "2026-11-23 10:00:00 UTC"
std::string TimeText(int64_t seconds);
// "CN=node2", of a certificate in PEM.
std::string SubjectOf(std::string_view certificate);
// "[DNS:a, IP:10.0.0.1, URI:unreft://job/j]", what a certificate in PEM is for.
std::string NamesOf(std::string_view certificate);
// Unauthenticated unless a certificate in PEM is for that DNS name or IP address: the message has
// the name and those that it is for.
absl::Status CheckHost(std::string_view certificate, const std::string& name);

}  // namespace tls_files
}  // namespace unreft
