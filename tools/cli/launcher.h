// Launcher: attempts of a training job, one after the other, until one succeeds.
//
// Single-threaded. Standard error gets a line per start and end: for people, or as JSON objects
//   {"event":"attempt-start","attempt","ranks","port","pids","unix_s"}
//   {"event":"attempt-end","attempt","why":"done"|"failed"|"stopped"|"moved","rank","pid",
//    "signal","exit_code","seconds","unix_s"}
// "moved": for an attempt on other nodes, which is none of the restarts.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>

#include "tools/cli/rank_group.h"

namespace unreft::cli {

struct LaunchOptions {
  RankGroupOptions group;  // its environment is completed by each attempt
  uint32_t max_restarts = 10;
  uint64_t first_attempt = 0;
  bool json = false;
  // If set: between two attempts, with a descriptor that is readable once a signal is to end it:
  // Cancelled then. It may change `group`, for the attempts that follow.
  std::function<absl::Status(int signals)> before_restart;
};

// Returns the exit code: 0 when all ranks of an attempt exited with 0; the failed rank's code (or
// 128 + its signal) once the restarts are used up; 128 + the signal that stopped us. Blocks SIGINT,
// SIGTERM and SIGHUP for good.
absl::StatusOr<int> Launch(const LaunchOptions& options);

}  // namespace unreft::cli
