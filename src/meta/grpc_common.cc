#include "meta/grpc_common.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "base/private_directory.h"

namespace unreft::meta {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    return absl::NotFoundError(fmt::format("the TLS file '{}' cannot be read", path));
  }
  if (text.empty()) return absl::NotFoundError(fmt::format("the TLS file '{}' is empty", path));
  return text;
}

struct TlsTexts {
  std::string ca;
  std::string cert;
  std::string key;
};

absl::StatusOr<TlsTexts> ReadTexts(const MetaTlsOptions& options) {
  const absl::Status is_private = CheckPrivateFile(options.key);
  if (absl::IsPermissionDenied(is_private)) return is_private;
  TlsTexts texts;
  for (auto [path, text] :
       {std::pair{&options.ca, &texts.ca}, std::pair{&options.cert, &texts.cert},
        std::pair{&options.key, &texts.key}}) {
    absl::StatusOr<std::string> read = ReadFile(*path);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(
    const MetaTlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureChannelCredentials();
  absl::StatusOr<TlsTexts> texts = ReadTexts(options);
  if (!texts.ok()) return texts.status();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = texts->ca;
  ssl.pem_cert_chain = texts->cert;
  ssl.pem_private_key = texts->key;
  return grpc::SslCredentials(ssl);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    const MetaTlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  absl::StatusOr<TlsTexts> texts = ReadTexts(options);
  if (!texts.ok()) return texts.status();
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = texts->ca;
  ssl.pem_key_cert_pairs.push_back({texts->key, texts->cert});
  return grpc::SslServerCredentials(ssl);
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
