// What the etcd client and the embedded server share of gRPC: credentials, and our words in etcd's
// messages. Functions without state.
#pragma once

#include <absl/status/statusor.h>
#include <etcd/kv.pb.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "base/wire_address.h"
#include "meta/kv.h"
#include "meta/meta_tls.h"

namespace unreft::meta {

// NotFound names the file that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(
    const MetaTlsOptions& options);
// With TLS, clients without a certificate of `ca` are refused.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    const MetaTlsOptions& options);

// Of an address of the store; `what` is the option that gives it.
WireUse WireUseOf(std::string what, const MetaTlsOptions& tls, bool insecure);

KeyValue FromWire(mvccpb::KeyValue&& wire);
void ToWire(const KeyValue& kv, mvccpb::KeyValue& wire);
WatchEvent FromWire(mvccpb::Event&& wire);

}  // namespace unreft::meta
