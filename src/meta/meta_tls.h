// MetaTlsOptions: how the meta store's client and server prove to each other who they are.
#pragma once

#include <string>

namespace unreft::meta {

// Paths of PEM files, read when a client or server is made; all empty: no TLS, in either direction.
struct MetaTlsOptions {
  std::string ca;    // of the other side
  std::string cert;  // our own chain
  std::string key;
  std::string server_name;  // for a client: what the server's certificate names, if not its address
  bool enabled() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

}  // namespace unreft::meta
