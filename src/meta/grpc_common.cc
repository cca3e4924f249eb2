#include "meta/grpc_common.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::meta {
absl::StatusOr<std::shared_ptr<TlsCertificates>> NewMetaCertificates(const MetaTlsOptions& options,
                                                                     TlsUse use, Executor& executor,
                                                                     Log* log) {
  if (!options.enabled()) return nullptr;
  return TlsCertificates::Create({.name = "meta_tls",
                                  .files = {options.ca, options.cert, options.key},
                                  .use = use,
                                  .uri = "",
                                  .reload = options.reload},
                                 executor, log);
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    TlsCertificates* certificates, const std::string& name,
    std::function<void(const absl::Status&)> on_handshake) {
  if (certificates == nullptr) return grpc::InsecureChannelCredentials();
  return certificates->ForChannel(
      [name](grpc::experimental::TlsCustomVerificationCheckRequest& request) {
        const grpc::string_ref shown = request.peer_cert();
        return tls_files::CheckHost({shown.data(), shown.size()}, name);
      },
      std::move(on_handshake));
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(TlsCertificates* certificates) {
  return certificates == nullptr ? grpc::InsecureServerCredentials() : certificates->ForServer();
}

WireUse WireUseOf(std::string what, const MetaTlsOptions& tls, bool insecure) {
  return {.what = std::move(what),
          .tls = "meta_tls_ca, meta_tls_cert, meta_tls_key",
          .has_tls = tls.enabled(),
          .may_be_open = insecure};
}

KeyValue FromWire(mvccpb::KeyValue&& wire) {
  return {.key = std::move(*wire.mutable_key()),
          .value = std::move(*wire.mutable_value()),
          .create_revision = {static_cast<uint64_t>(wire.create_revision())},
          .mod_revision = {static_cast<uint64_t>(wire.mod_revision())},
          .version = static_cast<uint64_t>(wire.version()),
          .lease = {static_cast<uint64_t>(wire.lease())}};
}

void ToWire(const KeyValue& kv, mvccpb::KeyValue& wire) {
  wire.set_key(kv.key);
  wire.set_value(kv.value);
  wire.set_create_revision(static_cast<int64_t>(kv.create_revision.value));
  wire.set_mod_revision(static_cast<int64_t>(kv.mod_revision.value));
  wire.set_version(static_cast<int64_t>(kv.version));
  wire.set_lease(static_cast<int64_t>(kv.lease.value));
}

WatchEvent FromWire(mvccpb::Event&& wire) {
  WatchEvent event;
  if (wire.type() == mvccpb::Event::DELETE) event.kind = WatchEvent::Kind::kDelete;
  event.kv = FromWire(std::move(*wire.mutable_kv()));
  return event;
}

}  // namespace unreft::meta
