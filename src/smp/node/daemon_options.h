// DaemonOptions: every option of unreftd; each is a flag, an environment variable and a key of the
// configuration file by one name (base/options.h).
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

#include "base/options.h"
#include "meta/etcd_kv.h"
#include "meta/meta_daemon.h"
#include "smp/core/node_options.h"
#include "smp/node/drain_role.h"
#include "smp/node/own_copies.h"
#include "transport/grpc_transport.h"

namespace CLI {
class App;
}

namespace unreft::smp {

struct DaemonOptions {
  // Or "meta": the embedded meta store, of no node; "forget": removes the job's records from it;
  // "drain": writes this node's part of a durable copy, started by the daemon.
  std::string role = "node";
  bool forget_present = false;  // of the role forget
  CommonOptions common;       // its run_dir holds the socket, the lock and the records
  NodeOptions node;
  bool spare = false;            // waits for the slot of a lost node (smp/node/spare.h)
  DrainOptions drain;            // of the role drain
  ExportPolicy exports;          // copies that are written without being asked for
  std::string metrics_listen;    // ADDRESS:PORT, or PORT of the loopback; empty: nowhere
  uint64_t work_threads = 0;     // that compute checksums; 0: half of the host's, at least one
  meta::MetaDaemonOptions meta;  // of the role meta
  // Of a job of several nodes: no endpoints, no meta store and no transport.
  meta::EtcdKvOptions kv;
  GrpcTransportOptions transport;
  bool allow_inject = false;   // for `unreft inject`
  // Allows TCP without TLS, where whoever reaches a port can do all (docs/security.md).
  bool insecure = false;
};

void AddDaemonOptions(CLI::App& app, DaemonOptions& options);

// Notes where those that are the same on all nodes have their values from. After they were parsed.
void NoteSources(const CLI::App& app, int argc, const char* const* argv, DaemonOptions& options);

// Fills what follows from other options, and checks what no single option can.
absl::Status FinishDaemonOptions(DaemonOptions& options);

}  // namespace unreft::smp
