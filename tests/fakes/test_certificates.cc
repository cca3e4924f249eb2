#include "tests/fakes/test_certificates.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

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

GrpcTlsOptions TestCertificates::Deploy(const std::string& name, const GrpcTlsOptions& files,
                                        const std::vector<std::string>& ca_files) const {
  GrpcTlsOptions deployed = files;
  const auto put = [&](const char* what, const std::vector<std::string>& from, std::string& file) {
    file = Path(fmt::format("deployed_{}.{}", name, what));
    {
      std::ofstream draft(file + ".new", std::ios::binary);
      for (const std::string& part : from) draft << std::ifstream(part, std::ios::binary).rdbuf();
    }
    std::filesystem::permissions(file + ".new", std::filesystem::perms(0600));
    std::filesystem::rename(file + ".new", file);
  };
  put("ca", ca_files, deployed.ca_file);
  put("key", {files.key_file}, deployed.key_file);
  put("cert", {files.cert_file}, deployed.cert_file);
  return deployed;
}

void TestCertificates::Sign(const std::string& request, const std::string& ca,
                            CertificateKind::Validity validity,
                            const std::string& certificate) const {
  if (validity == CertificateKind::Validity::kNow) {
    return OpenSsl(
        fmt::format("x509 -req -in '{}' -CA '{}' -CAkey '{}' -CAcreateserial -days 2 "
                    "-copy_extensions copy -out '{}'",
                    request, Path(ca + ".pem"), Path(ca + ".key"), certificate));
  }
  // Only `openssl ca` takes dates.
  const std::string config = Path("ca.cnf");
  std::ofstream(Path("index")).flush();
  std::ofstream(config) << "[ca]\ndefault_ca=own\n[own]\ndatabase=" << Path("index")
                        << "\nnew_certs_dir=" << directory_
                        << "\nrand_serial=yes\ndefault_md=sha256\npolicy=any\n"
                           "copy_extensions=copy\nunique_subject=no\n"
                           "[any]\ncommonName=supplied\n";
  const bool is_over = validity == CertificateKind::Validity::kOver;
  OpenSsl(
      fmt::format("ca -batch -notext -config '{}' -cert '{}' -keyfile '{}' -in '{}' -out '{}' "
                  "-startdate {}0101000000Z -enddate {}0102000000Z",
                  config, Path(ca + ".pem"), Path(ca + ".key"), request, certificate,
                  is_over ? 2020 : 2140, is_over ? 2020 : 2140));
}

GrpcTlsOptions TestCertificates::Make(const std::string& job, const std::string& ca,
                                      const CertificateKind& kind) const {
  const std::string new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
  const std::string ca_file = Path(ca + ".pem");
  const std::string ca_key = Path(ca + ".key");
  if (!std::filesystem::exists(ca_file)) {
    OpenSsl(fmt::format("req -x509 {} -keyout '{}' -subj '/CN={}' -days 2 -out '{}'", new_key,
                        ca_key, ca, ca_file));
  }
  const std::string name =
      fmt::format("{}_{}_{}_{}_{}", ca, job, kind.common_name, static_cast<int>(kind.validity),
                  std::hash<std::string>()(kind.names));
  GrpcTlsOptions tls{.enabled = true,
                     .ca_file = ca_file,
                     .cert_file = Path(name + ".pem"),
                     .key_file = Path(name + ".key")};
  if (std::filesystem::exists(tls.cert_file)) return tls;
  const std::string request = Path(name + ".csr");
  OpenSsl(
      fmt::format("req -new {} -keyout '{}' -subj '/CN={}' -out '{}' "
                  "-addext 'subjectAltName={},URI:unreft://job/{}'",
                  new_key, tls.key_file, kind.common_name, request, kind.names, job));
  Sign(request, ca, kind.validity, tls.cert_file);
  return tls;
}

}  // namespace unreft
