// TestCertificates: authorities and certificates of nodes, made by the openssl command, in a
// temporary directory that goes with the object.
#pragma once

#include <string>
#include <vector>

#include "transport/grpc_transport.h"

namespace unreft {

struct CertificateKind {
  enum class Validity { kNow, kOver, kNotYet };
  Validity validity = Validity::kNow;
  std::string names = "DNS:node";  // that it is for, as openssl writes them
  std::string common_name = "node";
};

class TestCertificates {
 public:
  TestCertificates();
  ~TestCertificates();
  TestCertificates(const TestCertificates&) = delete;
  TestCertificates& operator=(const TestCertificates&) = delete;

  // Copies of a node's files under names of their own, to be replaced by others as an operator does
  // it: each new file is renamed over the old one. `ca_files` are concatenated.
  GrpcTlsOptions Deploy(const std::string& name, const GrpcTlsOptions& files,
                        const std::vector<std::string>& ca_files) const;

  // The files of a node of that job, whose certificate and trust come from the authority `ca`; each
  // name of an authority is another one.
  GrpcTlsOptions Make(const std::string& job, const std::string& ca = "ours",
                      const CertificateKind& kind = {}) const;

 private:
  std::string Path(const std::string& file) const { return directory_ + "/" + file; }
  void Sign(const std::string& request, const std::string& ca, CertificateKind::Validity validity,
            const std::string& certificate) const;
  // Runs openssl with these arguments.
  void OpenSsl(const std::string& arguments) const;

  std::string directory_;
};

}  // namespace unreft
