// TestCertificates: authorities and certificates of nodes, made by the openssl command, in a
// temporary directory that goes with the object.
#pragma once

#include <string>

#include "transport/grpc_transport.h"

namespace unreft {

class TestCertificates {
 public:
  TestCertificates();
  ~TestCertificates();
  TestCertificates(const TestCertificates&) = delete;
  TestCertificates& operator=(const TestCertificates&) = delete;

  // The files of a node of that job, whose certificate and trust come from the authority `ca`; each
  // name of an authority is another one. The certificate is for the DNS name "node" too.
  GrpcTlsOptions Make(const std::string& job, const std::string& ca = "ours");

 private:
  std::string Path(const std::string& file) const { return directory_ + "/" + file; }
  // Runs openssl with these arguments.
  void OpenSsl(const std::string& arguments) const;

  std::string directory_;
};

}  // namespace unreft
