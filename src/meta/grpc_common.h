// What the etcd client and the embedded server share of gRPC: credentials, and our words in etcd's
// messages. Functions without state.
#pragma once

#include <absl/status/statusor.h>
#include <etcd/kv.pb.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <string>

#include "base/wire_address.h"
#include "meta/kv.h"
#include "meta/meta_tls.h"
#include "transport/tls_certificates.h"

namespace unreft::meta {

// Null without TLS. The refusals are those of TlsPair::Read; `executor` and `log`, which may be
// null, outlive the certificates.
absl::StatusOr<std::shared_ptr<TlsCertificates>> NewMetaCertificates(const MetaTlsOptions& options,
                                                                     TlsUse use, Executor& executor,
                                                                     Log* log);

// `name`: that a server's certificate has to have, a DNS name or an IP address. `on_handshake`
// hears on gRPC's threads why a server was refused, or OK.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    TlsCertificates* certificates, const std::string& name,
    std::function<void(const absl::Status&)> on_handshake);
// With TLS, clients without a certificate of the authority are refused.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(TlsCertificates* certificates);

// Of an address of the store; `what` is the option that gives it.
WireUse WireUseOf(std::string what, const MetaTlsOptions& tls, bool insecure);

KeyValue FromWire(mvccpb::KeyValue&& wire);
void ToWire(const KeyValue& kv, mvccpb::KeyValue& wire);
WatchEvent FromWire(mvccpb::Event&& wire);

}  // namespace unreft::meta
