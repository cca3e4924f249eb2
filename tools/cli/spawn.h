// Starting processes: a program run is ours until it ends or, detached, nobody's.
//
// For a process with one thread: it forks.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace unreft::cli {

struct SpawnRequest {
  std::vector<std::string> argv;                                 // argv[0] is looked up in PATH
  std::vector<std::pair<std::string, std::string>> environment;  // over ours
  bool new_group = false;  // lead a process group, so that all its children can be signalled
  int death_signal = 0;    // sent to it when this process dies; 0 = none
  // Each -1: inherited. Every other descriptor is closed.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
};

// Returns the pid once the program runs. NotFound or another error naming the program if it cannot.
// Signals are unblocked and at their defaults in the new process.
absl::StatusOr<pid_t> Spawn(const SpawnRequest& request);

// Starts a daemon: no terminal, a session of its own, so that neither Ctrl-C nor a signal to the
// caller's group reaches it; a child of init; standard input empty, output appended to `log_path`.
absl::StatusOr<pid_t> SpawnDetached(SpawnRequest request, const std::string& log_path);

}  // namespace unreft::cli
