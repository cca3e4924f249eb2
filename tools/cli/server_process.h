// Finding and stopping the processes that serve a directory: a daemon, the meta store, their
// supervisors. Blocking, stateless.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <set>
#include <string>

#include "tools/cli/deadline.h"
#include "tools/cli/place.h"
#include "tools/cli/process_handle.h"

namespace unreft::cli {

using FoundProcess = absl::StatusOr<std::optional<ProcessHandle>>;

// The holder of the lock. Without the file, which a cleaner of /tmp may have taken away from under
// a living process: the process of that name that was started by these words.
FoundProcess FindServer(const std::string& lock_path, const std::string& program,
                        const std::set<std::string>& words);

struct StopResult {
  std::optional<pid_t> supervisor;  // each that was stopped
  std::optional<pid_t> daemon;
  bool killed = false;  // one of them needed SIGKILL
};

using Finder = FoundProcess (*)(const Place&);

// Ends both; the supervisor first, or it would start the daemon again.
absl::StatusOr<StopResult> StopServers(const Place& place, Finder supervisor, Finder daemon,
                                       Milliseconds timeout);
// The same by SIGKILL, and waits for their ends.
absl::StatusOr<StopResult> KillServers(const Place& place, Finder supervisor, Finder daemon,
                                       Milliseconds timeout);

// The last lines of a log, each on a line of its own, for a message.
std::string LastLines(const std::string& path);

}  // namespace unreft::cli
