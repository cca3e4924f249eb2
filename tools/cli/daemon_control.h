// Starting, finding and stopping the daemon of a Place, and the memory it leaves. Blocking,
// stateless; everything that is known about a daemon is looked up in the run directory.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/segment_store.h"
#include "tools/cli/deadline.h"
#include "tools/cli/place.h"
#include "tools/cli/server_process.h"

namespace unreft::cli {

struct StartRequest {
  std::string daemon_path;                // empty: unreftd beside this program
  std::vector<std::string> daemon_words;  // options handed to it as they are
  bool supervise = false;
  Milliseconds timeout{30000};
};

struct StartResult {
  bool already_up = false;
  nlohmann::json status;  // the daemon's
};

// Starts the daemon, under a supervisor if asked, and waits until it answers. Idempotent.
absl::StatusOr<StartResult> StartDaemon(const Place& place, const StartRequest& request);

// The daemon's command line.
std::vector<std::string> DaemonArgv(const Place& place, const StartRequest& request);

absl::StatusOr<StopResult> StopDaemon(const Place& place, Milliseconds timeout);

// The processes that serve the place now, if any.
FoundProcess FindDaemon(const Place& place);
FoundProcess FindSupervisor(const Place& place);

// The segments of the place's job and node that are there now.
absl::StatusOr<std::vector<SegmentInfo>> ListMemory(const Place& place);
// Removes them, and the records, which are an index over them. No daemon runs. What was removed.
absl::StatusOr<std::vector<SegmentInfo>> RemoveMemory(const Place& place);
uint64_t TotalBytes(const std::vector<SegmentInfo>& segments);

// FailedPrecondition when a daemon that does not belong to this run directory serves the place's
// memory: it names the process, for the user to give its --run-dir.
absl::Status CheckNoOtherDaemon(const Place& place);

}  // namespace unreft::cli
