// Who the peer is: credentials of both directions, and the check that it is of this job.
//
// With TLS each side requires a certificate that the CA has signed, which TlsCertificates sees to,
// and that names the job. The client checks that within the handshake, before any byte of a request
// leaves; the host name is not looked at, since nodes move. The server checks it in each RPC, where
// it can answer by name.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <mutex>
#include <string>

#include "transport/grpc_transport.h"
#include "transport/tls_certificates.h"

namespace unreft {

// Why a server was refused last, for one address. gRPC itself says only that no connection came
// about. Thread-safe.
class ServerRefusal {
 public:
  void Set(absl::Status why);
  absl::Status Get() const;

 private:
  mutable std::mutex mutex_;  // covers the one below
  absl::Status why_;
};

class GrpcIdentity {
 public:
  // Without certificates there is no TLS.
  static std::unique_ptr<GrpcIdentity> Create(const std::string& job,
                                              std::shared_ptr<TlsCertificates> certificates);
  virtual ~GrpcIdentity() = default;

  virtual std::shared_ptr<grpc::ServerCredentials> ForServer() const = 0;
  virtual std::shared_ptr<grpc::ChannelCredentials> ForChannel(
      std::shared_ptr<ServerRefusal> refusal) const = 0;

  // PermissionDenied or Unauthenticated, naming both jobs. Thread-safe.
  virtual absl::Status CheckClient(const grpc::CallbackServerContext& context) const = 0;
};

}  // namespace unreft
