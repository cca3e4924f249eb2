// DaemonOptions: every option of unreftd; each is a flag, an environment variable and a key of the
// configuration file by one name (base/options.h).
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "base/options.h"
#include "smp/node_options.h"

namespace CLI {
class App;
}

namespace unreft::smp {

struct DaemonOptions {
  CommonOptions common;  // its run_dir holds the socket, the lock and the records
  NodeOptions node;
  uint64_t work_threads = 0;  // that compute checksums; 0: half of the host's, at least one
};

void AddDaemonOptions(CLI::App& app, DaemonOptions& options);

// Fills what follows from other options, and checks what no single option can.
absl::Status FinishDaemonOptions(DaemonOptions& options);

}  // namespace unreft::smp
