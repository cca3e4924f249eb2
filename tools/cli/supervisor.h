// Supervisor: keeps a daemon running. It starts it again, after a bounded and growing delay, when
// it died; it ends with it when it ended orderly, or refused to start in the first place.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "tools/cli/restart_policy.h"

namespace unreft::cli {

struct SupervisorOptions {
  std::vector<std::string> argv;  // of the daemon
  RestartLimits restart;
  Milliseconds stop_timeout{10000};  // between SIGTERM and SIGKILL
};

// Returns OK when the daemon ended with code 0, or SIGTERM or SIGINT ended both; otherwise
// says why it gives up. Blocks these signals and SIGCHLD for good: for a process of one thread that
// does nothing else. Each death is a line on standard error.
absl::Status Supervise(const SupervisorOptions& options);

}  // namespace unreft::cli
