// The log sinks of real processes: spdlog underneath, the time in front of each line.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"

namespace unreft {

// To stderr, flushed at each line.
std::unique_ptr<LogSink> StderrLogSink();

// Appends to `path`, flushed at each line; at `bytes_max` the file becomes `path`.1 ("log.txt" ->
// "log.1.txt") and a new one begins, so that at most twice as much is kept. Once open, a disk that
// becomes full loses lines and nothing else. A Reopen that fails leaves the file that was open.
absl::StatusOr<std::unique_ptr<LogSink>> FileLogSink(const std::string& path, uint64_t bytes_max);

}  // namespace unreft
