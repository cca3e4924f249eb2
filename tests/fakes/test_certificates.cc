#include "tests/fakes/test_certificates.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/check.h"

namespace unreft {

TestCertificates::TestCertificates() {
  directory_ = std::filesystem::temp_directory_path() / "unreft_certificates_XXXXXX";
  UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr);
}

TestCertificates::~TestCertificates() { std::filesystem::remove_all(directory_); }

void TestCertificates::OpenSsl(const std::string& arguments) const {
  const std::string command = fmt::format("openssl {} >>'{}' 2>&1", arguments, Path("openssl.log"));
  UNREFT_CHECK(std::system(command.c_str()) == 0, "{}", command);
}

GrpcTlsOptions TestCertificates::Make(const std::string& job, const std::string& ca) {
  const std::string new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
  const std::string ca_file = Path(ca + ".pem");
  const std::string ca_key = Path(ca + ".key");
  if (!std::filesystem::exists(ca_file)) {
    OpenSsl(fmt::format("req -x509 {} -keyout '{}' -subj '/CN={}' -days 2 -out '{}'", new_key,
                        ca_key, ca, ca_file));
  }
  const std::string name = ca + "_" + job;
  GrpcTlsOptions tls{.enabled = true,
                     .ca_file = ca_file,
                     .cert_file = Path(name + ".pem"),
                     .key_file = Path(name + ".key")};
  if (std::filesystem::exists(tls.cert_file)) return tls;
  const std::string request = Path(name + ".csr");
  OpenSsl(
      fmt::format("req -new {} -keyout '{}' -subj /CN=node -out '{}' "
                  "-addext 'subjectAltName=DNS:node,URI:unreft://job/{}'",
                  new_key, tls.key_file, request, job));
  OpenSsl(
      fmt::format("x509 -req -in '{}' -CA '{}' -CAkey '{}' -CAcreateserial -days 2 "
                  "-copy_extensions copy -out '{}'",
                  request, ca_file, ca_key, tls.cert_file));
  return tls;
}

}  // namespace unreft
