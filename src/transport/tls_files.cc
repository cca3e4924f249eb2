#include "transport/tls_files.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "base/private_directory.h"
#include "transport/openssl_owners.h"

namespace unreft::tls_files {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Freed;
using openssl::Key;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

void FreeStack(STACK_OF(X509) * certificates) { sk_X509_pop_free(certificates, X509_free); }
using Stack = std::unique_ptr<STACK_OF(X509), Freed<FreeStack>>;

absl::Status Unreadable(const std::string& file, std::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(
      fmt::format("TLS needs ca_file, cert_file and key_file: cannot read {} in '{}'", what, file));
}

// All certificates of the file, the node's own first.
absl::StatusOr<Stack> ReadChain(const std::string& file) {
  Stack chain(sk_X509_new_null());
  const Bio bio(BIO_new_file(file.c_str(), "r"));
  while (bio != nullptr) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    sk_X509_push(chain.get(), next.release());
  }
  if (sk_X509_num(chain.get()) == 0) return Unreadable(file, "a certificate");
  ERR_clear_error();  // the end of the file is one
  return chain;
}

absl::Status CheckKey(const GrpcTlsOptions& tls, X509* own) {
  const absl::Status is_private = CheckPrivateFile(tls.key_file);
  if (absl::IsPermissionDenied(is_private)) return is_private;
  const Bio bio(BIO_new_file(tls.key_file.c_str(), "r"));
  const Key key(bio == nullptr ? nullptr
                               : PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return Unreadable(tls.key_file, "a key");
  if (X509_check_private_key(own, key.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not the key of the certificate '{}'", tls.key_file, tls.cert_file));
}

absl::Status CheckSigned(const GrpcTlsOptions& tls, STACK_OF(X509) * chain) {
  const Store store(X509_STORE_new());
  if (X509_STORE_load_file(store.get(), tls.ca_file.c_str()) != 1) {
    return Unreadable(tls.ca_file, "a certificate");
  }
  const StoreContext context(X509_STORE_CTX_new());
  X509* const own = sk_X509_value(chain, 0);
  if (X509_STORE_CTX_init(context.get(), store.get(), own, chain) == 1 &&
      X509_verify_cert(context.get()) == 1) {
    return absl::OkStatus();
  }
  ERR_clear_error();
  const std::string why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
  return absl::InvalidArgumentError(
      fmt::format("the certificate '{}' does not verify by the authorities of '{}': {}",
                  tls.cert_file, tls.ca_file, why));
}

std::vector<std::string> UrisOf(X509* certificate) {
  std::vector<std::string> uris;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

}  // namespace

absl::Status Check(const std::string& job, const GrpcTlsOptions& tls) {
  absl::StatusOr<Stack> chain = ReadChain(tls.cert_file);
  if (!chain.ok()) return chain.status();
  X509* const own = sk_X509_value(chain->get(), 0);
  if (absl::Status status = CheckKey(tls, own); !status.ok()) return status;
  if (absl::Status status = CheckSigned(tls, chain->get()); !status.ok()) return status;
  const std::vector<std::string> uris = UrisOf(own);
  if (std::ranges::find(uris, GrpcJobUri(job)) != uris.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("the certificate '{}' is for [{}], not for {}",
                                                tls.cert_file, fmt::join(uris, ", "),
                                                GrpcJobUri(job)));
}

}  // namespace unreft::tls_files
