// CertificateState: of a certificate in use, for metrics and status.
#pragma once

#include <cstdint>
#include <string>

namespace unreft {

struct CertificateState {
  std::string name;            // of its options: "transport_tls"
  int64_t expires_s = 0;       // since 1970
  bool files_are_bad = false;  // those that lie there now were not taken
};

}  // namespace unreft
