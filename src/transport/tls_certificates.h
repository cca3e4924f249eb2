// TlsCertificates: the certificate, key and authorities by which one side is known and knows its
// peers, read again while it runs.
//
// What was changed in the files is looked at as at the start. A good pair is used for connections
// made from then on; a bad one is an error in the log, and the pair before stays in use. Peers are
// checked here and not by gRPC, so that whoever refuses one can say who it is and why.
//
// Reload in turns of the executor; all else is thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "transport/certificate_state.h"
#include "transport/tls_files.h"

namespace unreft {

struct TlsCertificatesOptions {
  std::string name;  // "transport_tls": that of its options, for messages
  TlsFiles files;
  TlsUse use = TlsUse::kBoth;
  std::string uri;  // that its own certificate has to have; empty: none
  Duration reload = std::chrono::seconds(10);
};

class TlsCertificates : public std::enable_shared_from_this<TlsCertificates> {
 public:
  // What a caller asks of the server's certificate beyond its chain. On threads of gRPC.
  using CheckServer =
      std::function<absl::Status(grpc::experimental::TlsCustomVerificationCheckRequest& request)>;

  // The refusals of TlsPair::Read. `executor` and `log`, which may be null, outlive it.
  static absl::StatusOr<std::shared_ptr<TlsCertificates>> Create(TlsCertificatesOptions options,
                                                                 Executor& executor, Log* log);

  // Looks at the files now. The error is that of a bad pair, which is logged as well.
  absl::Status Reload();

  // For those who connect; `refused` hears why a server was refused, or OK.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(
      CheckServer check, std::function<void(const absl::Status&)> refused);
  // For those who listen: a client that is refused is logged with its subject and the cause.
  std::shared_ptr<grpc::ServerCredentials> ForServer();

  CertificateState state() const;
  std::shared_ptr<const TlsPair> current() const;
  // Warns of a caller that is let in no further, at most each 30 s of one subject.
  void LogRefused(const std::string& address, const std::string& subject,
                  const absl::Status& why) const;

 private:
  TlsCertificates(TlsCertificatesOptions options, Executor& executor, Log* log)
      : options_(std::move(options)), executor_(executor), log_(log) {}

  absl::Status Use(std::shared_ptr<const TlsPair> pair);
  void ReloadLater();
  // A refusal is told when the same has been found twice: files are replaced one after the other.
  absl::Status Look(bool tells_at_once);
  void Tell(const absl::Status& bad);

  const TlsCertificatesOptions options_;
  Executor& executor_;
  Log* const log_;
  // In memory: gRPC watches files, and these have what was checked.
  UniqueFd own_file_;  // key and chain, which belong together
  UniqueFd authorities_file_;
  uint64_t uses_ = 0;
  std::string found_bad_;  // why the files were not taken when they were looked at last
  std::string told_bad_;
  std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> provider_;
  mutable std::mutex mutex_;  // covers the two below
  std::shared_ptr<const TlsPair> current_;
  bool files_are_bad_ = false;
};

// What SIGHUP asks of a daemon: the file of the log is opened anew, since it may have been moved
// away, and the TLS files are looked at. Null: no TLS there.
void Reload(Log& log, std::initializer_list<TlsCertificates*> all);

}  // namespace unreft
