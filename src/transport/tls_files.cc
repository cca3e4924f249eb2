#include "transport/tls_files.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/private_directory.h"
#include "transport/openssl_owners.h"

namespace unreft {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Freed;
using openssl::Key;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

void FreeStack(STACK_OF(X509) * certificates) { sk_X509_pop_free(certificates, X509_free); }
using Stack = std::unique_ptr<STACK_OF(X509), Freed<FreeStack>>;

Bio BioOf(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// All certificates of the text; what does not parse ends it.
Stack CertificatesOf(std::string_view pem) {
  Stack all(sk_X509_new_null());
  const Bio bio = BioOf(pem);
  while (bio != nullptr) {
    Certificate next(PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    sk_X509_push(all.get(), next.release());
  }
  ERR_clear_error();  // the end of the text is one
  return all;
}

absl::Status Unreadable(const std::string& file, std::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(fmt::format("TLS: cannot read {} in '{}'", what, file));
}

std::string TextOf(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string SubjectOfName(const X509_NAME* name) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : "(none)";
}

std::string SubjectOfX509(const X509* certificate) {
  return SubjectOfName(X509_get_subject_name(certificate));
}

int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? int64_t{timegm(&parts)} : 0;
}

std::string SerialOf(X509* certificate) {
  const Number number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  char* const digits = number == nullptr ? nullptr : BN_bn2hex(number.get());
  std::string text = digits == nullptr ? "" : digits;
  OPENSSL_free(digits);
  return text;
}

std::string AddressOf(const ASN1_OCTET_STRING* address) {
  char text[INET6_ADDRSTRLEN] = "";
  const int family = ASN1_STRING_length(address) == sizeof(in_addr) ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(address) != sizeof(in6_addr)) return "?";
  return inet_ntop(family, ASN1_STRING_get0_data(address), text, sizeof(text)) == nullptr ? "?"
                                                                                          : text;
}

struct AlternativeName {
  std::string_view kind;
  std::string value;
};

std::vector<AlternativeName> AlternativeNames(X509* certificate) {
  std::vector<AlternativeName> all;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_IPADD) {
      all.push_back({"IP", AddressOf(name->d.iPAddress)});
    } else if (name->type == GEN_URI || name->type == GEN_DNS) {
      const ASN1_IA5STRING* text = name->d.ia5;
      all.push_back({name->type == GEN_URI ? "URI" : "DNS",
                     {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text))}});
    }
  }
  return all;
}

bool IsForeign(int error) {
  return error == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
         error == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT ||
         error == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE ||
         error == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ||
         error == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
         error == X509_V_ERR_CERT_SIGNATURE_FAILURE;
}

// Why it does not verify; said of an authority if it was found at one.
std::string CauseOf(X509_STORE_CTX* context) {
  const int error = X509_STORE_CTX_get_error(context);
  const X509* const found = X509_STORE_CTX_get_current_cert(context);
  std::string cause = X509_verify_cert_error_string(error);
  if (IsForeign(error)) {
    const X509* const own = X509_STORE_CTX_get0_cert(context);
    return fmt::format("it was signed by {}, which is none of the authorities here ({})",
                       SubjectOfName(X509_get_issuer_name(own)), cause);
  }
  if (found == nullptr) return cause;
  if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
    cause = "expired since " + tls_files::TimeText(SecondsOf(X509_get0_notAfter(found)));
  } else if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
    cause = "not valid before " + tls_files::TimeText(SecondsOf(X509_get0_notBefore(found)));
  }
  if (X509_STORE_CTX_get_error_depth(context) == 0) return cause;
  return fmt::format("its authority {}: {}", SubjectOfX509(found), cause);
}

// OK, or Unauthenticated with the cause alone.
absl::Status Verify(X509_STORE* authorities, X509* own, STACK_OF(X509) * chain,
                    const char* purpose) {
  const StoreContext context(X509_STORE_CTX_new());
  if (context == nullptr || X509_STORE_CTX_init(context.get(), authorities, own, chain) != 1 ||
      X509_STORE_CTX_set_default(context.get(), purpose) != 1) {
    ERR_clear_error();
    return absl::UnauthenticatedError("it could not be checked");
  }
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::UnauthenticatedError(CauseOf(context.get()));
}

// What OpenSSL calls the check of the side that shows a certificate for that use.
std::vector<const char*> PurposesOf(TlsUse use) {
  if (use == TlsUse::kConnects) return {"ssl_client"};
  if (use == TlsUse::kListens) return {"ssl_server"};
  return {"ssl_client", "ssl_server"};
}

class ReadPair final : public TlsPair {
 public:
  absl::Status Open(const TlsFiles& files, TlsUse use, const std::string& uri) {
    const std::string certificates = TextOf(files.cert);
    const Stack chain = CertificatesOf(certificates);
    if (sk_X509_num(chain.get()) == 0) return Unreadable(files.cert, "a certificate");
    X509* const own = sk_X509_value(chain.get(), 0);
    if (absl::Status status = ReadKey(files, own); !status.ok()) return status;
    key_and_chain_ += "\n" + certificates;
    if (absl::Status status = ReadAuthorities(files.ca); !status.ok()) return status;
    for (const char* purpose : PurposesOf(use)) {
      const absl::Status verified = Verify(store_.get(), own, chain.get(), purpose);
      if (verified.ok()) continue;
      return absl::InvalidArgumentError(
          fmt::format("the certificate '{}' does not verify by the authorities of '{}': {}",
                      files.cert, files.ca, std::string(verified.message())));
    }
    serial_ = SerialOf(own);
    expires_s_ = SecondsOf(X509_get0_notAfter(own));
    return CheckUri(files, own, uri);
  }

  absl::Status CheckPeer(TlsUse peers_use, std::string_view certificate,
                         std::string_view chain) const override {
    const Stack own = CertificatesOf(certificate);
    if (sk_X509_num(own.get()) == 0) {
      return absl::UnauthenticatedError("the peer shows no certificate");
    }
    const Stack others = CertificatesOf(chain);
    X509* const shown = sk_X509_value(own.get(), 0);
    for (const char* purpose : PurposesOf(peers_use)) {
      const absl::Status verified = Verify(store_.get(), shown, others.get(), purpose);
      if (verified.ok()) continue;
      return absl::UnauthenticatedError(fmt::format("the certificate of {}, serial {}: {}",
                                                    SubjectOfX509(shown), SerialOf(shown),
                                                    std::string(verified.message())));
    }
    return absl::OkStatus();
  }

  const std::string& key_and_chain() const override { return key_and_chain_; }
  const std::string& authorities() const override { return authorities_; }
  const std::string& serial() const override { return serial_; }
  int64_t expires_s() const override { return expires_s_; }

 private:
  absl::Status ReadKey(const TlsFiles& files, X509* own) {
    const absl::Status is_private = CheckPrivateFile(files.key);
    if (absl::IsPermissionDenied(is_private)) return is_private;
    key_and_chain_ = TextOf(files.key);
    const Bio bio = BioOf(key_and_chain_);
    const Key key(bio == nullptr ? nullptr
                                 : PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
    if (key == nullptr) return Unreadable(files.key, "a key");
    if (X509_check_private_key(own, key.get()) == 1) return absl::OkStatus();
    ERR_clear_error();
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not the key of the certificate '{}'", files.key, files.cert));
  }

  absl::Status ReadAuthorities(const std::string& file) {
    authorities_ = TextOf(file);
    const Stack all = CertificatesOf(authorities_);
    store_.reset(X509_STORE_new());
    for (int i = 0; i < sk_X509_num(all.get()); ++i) {
      if (X509_STORE_add_cert(store_.get(), sk_X509_value(all.get(), i)) != 1) {
        return Unreadable(file, "a certificate");
      }
    }
    return sk_X509_num(all.get()) == 0 ? Unreadable(file, "a certificate") : absl::OkStatus();
  }

  static absl::Status CheckUri(const TlsFiles& files, X509* own, const std::string& uri) {
    if (uri.empty()) return absl::OkStatus();
    std::vector<std::string> uris;
    for (const AlternativeName& name : AlternativeNames(own)) {
      if (name.kind == "URI") uris.push_back(name.value);
    }
    if (std::ranges::find(uris, uri) != uris.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("the certificate '{}' is for [{}], not for {}",
                                                  files.cert, fmt::join(uris, ", "), uri));
  }

  std::string key_and_chain_;
  std::string authorities_;
  std::string serial_;
  int64_t expires_s_ = 0;
  Store store_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsPair>> TlsPair::Read(const TlsFiles& files, TlsUse use,
                                                             const std::string& uri) {
  auto pair = std::make_shared<ReadPair>();
  if (absl::Status status = pair->Open(files, use, uri); !status.ok()) return status;
  return std::shared_ptr<const TlsPair>(std::move(pair));
}

namespace tls_files {

std::string TimeText(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64] = "";
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string SubjectOf(std::string_view certificate) {
  const Stack all = CertificatesOf(certificate);
  return sk_X509_num(all.get()) == 0 ? "(none)" : SubjectOfX509(sk_X509_value(all.get(), 0));
}

std::string NamesOf(std::string_view certificate) {
  const Stack all = CertificatesOf(certificate);
  std::vector<std::string> names;
  if (sk_X509_num(all.get()) > 0) {
    for (const AlternativeName& name : AlternativeNames(sk_X509_value(all.get(), 0))) {
      names.push_back(fmt::format("{}:{}", name.kind, name.value));
    }
  }
  return fmt::format("[{}]", fmt::join(names, ", "));
}

absl::Status CheckHost(std::string_view certificate, const std::string& name) {
  const Stack all = CertificatesOf(certificate);
  X509* const shown = sk_X509_num(all.get()) == 0 ? nullptr : sk_X509_value(all.get(), 0);
  unsigned char address[sizeof(in6_addr)];
  const bool is_address = inet_pton(AF_INET, name.c_str(), address) == 1 ||
                          inet_pton(AF_INET6, name.c_str(), address) == 1;
  constexpr unsigned kFlags = X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS;
  int is_it = 0;
  if (shown != nullptr && is_address) is_it = X509_check_ip_asc(shown, name.c_str(), 0);
  if (shown != nullptr && !is_address) {
    is_it = X509_check_host(shown, name.data(), name.size(), kFlags, nullptr);
  }
  ERR_clear_error();
  if (is_it == 1) return absl::OkStatus();
  return absl::UnauthenticatedError(fmt::format("the certificate of {} is for {}, needed {}:{}",
                                                SubjectOf(certificate), NamesOf(certificate),
                                                is_address ? "IP" : "DNS", name));
}

}  // namespace tls_files
}  // namespace unreft
