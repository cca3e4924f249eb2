// TestCertificates: authorities and certificates of nodes, made by the openssl command, in a
// temporary directory that goes with the object.
#pragma once

#include <string>
#include <vector>

#include "transport/grpc_transport.h"

namespace unreft {

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
  // name of an authority is another one. `node` is its common name; the certificate is for the DNS
  // name "node" too.
  GrpcTlsOptions Make(const std::string& job, const std::string& ca = "ours",
                      const std::string& node = "node");

 private:
  std::string Path(const std::string& file) const { return directory_ + "/" + file; }
  // Runs openssl with these arguments.
  void OpenSsl(const std::string& arguments) const;

  std::string directory_;
};

}  // namespace unreft
