// MetaTlsOptions: how the meta store's client and server prove to each other who they are.
#pragma once

#include <chrono>
#include <string>

namespace unreft::meta {

// Paths of PEM files; all empty: no TLS, in either direction. They are read again while client or
// server run (transport/tls_certificates.h).
struct MetaTlsOptions {
  std::string ca;    // of the other side
  std::string cert;  // our own chain
  std::string key;
  // For a client: what the certificate of each server names, if not its own address.
  std::string server_name;
  std::chrono::nanoseconds reload = std::chrono::seconds(10);
  bool enabled() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

}  // namespace unreft::meta
