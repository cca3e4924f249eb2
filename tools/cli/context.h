// Context: what every command of the CLI is given, and its exit codes. A value; one per run.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/cluster.h"
#include "tools/cli/deadline.h"
#include "tools/cli/place.h"

namespace unreft::cli {

// Documented in `unreft --help`; never changed.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoDaemon = 3;
inline constexpr int kExitDeadline = 4;
inline constexpr int kExitCorrupt = 5;      // verify found slots whose bytes are wrong
inline constexpr int kExitCannotRun = 127;  // run: the command itself could not be started

struct Context {
  Place place;  // of the node that the command is about
  bool job_given = false;
  bool node_given = false;
  bool run_dir_is_default = true;
  std::optional<Cluster> cluster;  // of a job whose nodes all run on this machine
  bool json = false;
  uint64_t timeout_ms = 10000;
  std::vector<std::string> after_dashes;  // the words after "--"
  std::function<int()> command;           // chosen by the parse; returns the exit code

  Milliseconds timeout() const { return Milliseconds(timeout_ms); }
  // Of a command that no node was given to; null in a job of one node.
  const Cluster* all_nodes() const { return cluster && !node_given ? &*cluster : nullptr; }
};

// The result on standard output: `document` when --json was given, otherwise `text`.
void Print(const Context& context, const nlohmann::json& document, const std::string& text);

// By the kind of the error.
int ExitCode(const absl::Status& status);

// The error, on standard error or, with --json, as {"error", "code"} on standard output. Returns
// the exit code of `status`.
int Fail(const Context& context, const absl::Status& status);

// One line on standard error.
void Say(const std::string& line);

}  // namespace unreft::cli
