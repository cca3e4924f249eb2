#include "tools/cli/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "base/private_directory.h"
#include "base/unique_fd.h"
#include "transport/openssl_owners.h"

namespace unreft::cli {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Freed;
using openssl::Key;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;

constexpr int kAuthorityLives = 10;        // of a certificate
constexpr int kSerialBits = 127;           // positive, and never twice
constexpr long kClockDifferenceS = -3600;  // between the machines of a job

struct Identity {
  Certificate certificate;
  Key key;
};

absl::Status OpenSslError(std::string_view what) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(fmt::format("{}: {}", what, text));
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetSerial(X509* certificate) {
  const Number number(BN_new());
  return BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

using Extensions = std::vector<std::pair<int, std::string>>;

// Signed by `issuer`, or by itself.
absl::StatusOr<Identity> Make(const std::string& name, int days, const Identity* issuer,
                              const Extensions& extensions) {
  Identity made{Certificate(X509_new()), Key(EVP_EC_gen("P-256"))};
  if (made.certificate == nullptr || made.key == nullptr) return OpenSslError("make a key");
  X509* const own = made.certificate.get();
  X509* const signer = issuer == nullptr ? own : issuer->certificate.get();
  X509_NAME* const subject = X509_get_subject_name(own);
  const auto* const text = reinterpret_cast<const unsigned char*>(name.c_str());
  bool ok = X509_set_version(own, 2) == 1 && SetSerial(own) &&
            X509_gmtime_adj(X509_getm_notBefore(own), kClockDifferenceS) != nullptr &&
            X509_time_adj_ex(X509_getm_notAfter(own), days, 0, nullptr) != nullptr &&
            X509_set_pubkey(own, made.key.get()) == 1 &&
            X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1 &&
            X509_set_issuer_name(own, X509_get_subject_name(signer)) == 1;
  for (const auto& [nid, value] : extensions) ok = ok && AddExtension(own, signer, nid, value);
  EVP_PKEY* const key = issuer == nullptr ? made.key.get() : issuer->key.get();
  if (ok && X509_sign(own, key, EVP_sha256()) > 0) return made;
  return OpenSslError(fmt::format("make the certificate of {}", name));
}

absl::StatusOr<Identity> MakeAuthority(const CertificateRequest& request) {
  return Make("unreft authority", kAuthorityLives * request.days, nullptr,
              {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
               {NID_key_usage, "critical,keyCertSign,cRLSign"},
               {NID_subject_key_identifier, "hash"}});
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// What it is for, of the alternative names.
std::string NamesOf(const std::string& who, const CertificateRequest& request) {
  std::string names = fmt::format("URI:unreft://job/{}", request.job);
  if (who != "meta") return names;  // nodes move: where one is is not looked at
  for (const std::string& host : request.hosts) {
    names += fmt::format(",{}:{}", IsAddress(host) ? "IP" : "DNS", host);
  }
  return names;
}

// A comma would be another name.
absl::Status CheckHost(const std::string& host) {
  constexpr char kOfNames[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-*";
  if (IsAddress(host)) return absl::OkStatus();
  if (!host.empty() && host.find_first_not_of(kOfNames) == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("--host: needed a name or an IP address, found '{}'", host));
}

// Whole or not at all, and nobody else's to read from the first byte on.
absl::Status WriteFile(const std::string& path, mode_t mode, const Bio& content) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(content.get(), &data);
  const std::string draft = path + ".new";
  ::unlink(draft.c_str());
  const UniqueFd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return absl::ErrnoToStatus(errno, "make " + draft);
  if (fchmod(fd.get(), mode) != 0 || write(fd.get(), data, static_cast<size_t>(size)) != size ||
      fsync(fd.get()) != 0 || ::rename(draft.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, "write " + path);
  }
  return absl::OkStatus();
}

// The key first: a certificate without its key is of no use.
absl::Status Write(const std::string& stem, const Identity& identity) {
  const Bio key(BIO_new(BIO_s_mem()));
  const Bio certificate(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(key.get(), identity.key.get(), nullptr, nullptr, 0, nullptr,
                               nullptr) != 1 ||
      PEM_write_bio_X509(certificate.get(), identity.certificate.get()) != 1) {
    return OpenSslError("write " + stem);
  }
  if (absl::Status status = WriteFile(stem + ".key", 0600, key); !status.ok()) return status;
  return WriteFile(stem + ".pem", 0644, certificate);
}

absl::StatusOr<Identity> Read(const std::string& stem) {
  if (absl::Status status = CheckPrivateFile(stem + ".key"); !status.ok()) return status;
  const Bio key(BIO_new_file((stem + ".key").c_str(), "r"));
  const Bio certificate(BIO_new_file((stem + ".pem").c_str(), "r"));
  Identity read;
  if (key != nullptr) read.key.reset(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
  if (certificate != nullptr) {
    read.certificate.reset(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr));
  }
  if (read.key != nullptr && read.certificate != nullptr &&
      X509_check_private_key(read.certificate.get(), read.key.get()) == 1) {
    return read;
  }
  ERR_clear_error();
  return absl::InvalidArgumentError(
      fmt::format("{0}.pem and {0}.key are no certificate and its key", stem));
}

absl::StatusOr<Identity> FindAuthority(const CertificateRequest& request, bool& made) {
  const std::string stem = request.directory + "/ca";
  const bool has_certificate = std::filesystem::exists(stem + ".pem");
  const bool has_key = std::filesystem::exists(stem + ".key");
  if (has_certificate && has_key) return Read(stem);
  if (has_certificate || has_key) {
    return absl::FailedPreconditionError(fmt::format(
        "{0}.pem and {0}.key: needed both or none of them, found the {1} alone; to sign for an "
        "authority its key is needed",
        stem, has_key ? "key" : "certificate"));
  }
  absl::StatusOr<Identity> authority = MakeAuthority(request);
  if (!authority.ok()) return authority.status();
  if (absl::Status status = Write(stem, *authority); !status.ok()) return status;
  made = true;
  return authority;
}

}  // namespace

absl::StatusOr<CertificateResult> MakeCertificates(const CertificateRequest& request) {
  for (const std::string& host : request.hosts) {
    if (absl::Status status = CheckHost(host); !status.ok()) return status;
  }
  if (absl::Status status = MakePrivateDirectory(request.directory); !status.ok()) return status;
  CertificateResult result;
  absl::StatusOr<Identity> authority = FindAuthority(request, result.made_authority);
  if (!authority.ok()) return authority.status();
  std::vector<std::string> everyone = {"meta"};
  for (uint64_t node = 0; node < request.nodes; ++node) {
    everyone.push_back(fmt::format("node{}", node));
  }
  for (const std::string& who : everyone) {
    const std::string stem = fmt::format("{}/{}", request.directory, who);
    const bool is_there =
        std::filesystem::exists(stem + ".pem") && std::filesystem::exists(stem + ".key");
    if (is_there && !request.renew && !result.made_authority) {
      result.kept.push_back(who);
      continue;
    }
    absl::StatusOr<Identity> made = Make(who, request.days, &*authority,
                                         {{NID_basic_constraints, "critical,CA:FALSE"},
                                          {NID_key_usage, "critical,digitalSignature"},
                                          {NID_ext_key_usage, "serverAuth,clientAuth"},
                                          {NID_authority_key_identifier, "keyid"},
                                          {NID_subject_alt_name, NamesOf(who, request)}});
    if (!made.ok()) return made.status();
    if (absl::Status status = Write(stem, *made); !status.ok()) return status;
    result.made.push_back(who);
  }
  return result;
}

}  // namespace unreft::cli
