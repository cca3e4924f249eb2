// Daemon: a Node over the real back ends - the process that main runs.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/log.h"
#include "base/service_manager.h"
#include "smp/node/daemon_options.h"

namespace unreft::smp {

// The socket of the daemon whose run directory that is.
std::string SocketPath(const std::string& run_dir);

// Serves until SIGTERM or SIGINT, then leaves the memory to the next process: OK. SIGHUP reopens
// the log's file and looks at the TLS files. `manager` hears when it serves and when it leaves.
// Fails, with nothing changed, when this node cannot be served: another daemon holds the directory,
// the memory is of another format.
absl::Status RunDaemon(const DaemonOptions& options, Log& log, const ServiceManager& manager);

}  // namespace unreft::smp
