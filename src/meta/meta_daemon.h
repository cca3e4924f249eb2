// The embedded meta store as a process of its own: `unreftd --role=meta`.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/log.h"
#include "base/service_manager.h"
#include "meta/embedded_server.h"
#include "meta/store_engine.h"

namespace unreft::meta {

struct MetaDaemonOptions {
  std::string directory;  // of no node: the lock, the records, and the file `address`
  EmbeddedServerOptions server;
  StoreEngineOptions engine;
};

// Serves until SIGTERM or SIGINT: OK; SIGHUP reopens the log's file and looks at the TLS files. The
// file `address` says where, while it does.
// FailedPrecondition: another process holds the directory; Unavailable: the address is taken.
absl::Status RunMetaDaemon(const MetaDaemonOptions& options, Log& log,
                           const ServiceManager& manager);

}  // namespace unreft::meta
