// Log: lines for people, to a sink given by constructor.
//
// A line has a level and a text, of which 8 KiB are written, and no time: the sinks of real
// processes add it (base/log_sinks.h), that of a test does not, so that a simulated run prints the
// same each time.
#pragma once

#include <fmt/format.h>

#include <absl/status/statusor.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/executor.h"
#include "base/format.h"

namespace unreft {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

// "debug", "info", "warn", "error" or "off"; InvalidArgument says so.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text);
std::string_view LogLevelName(LogLevel level);

// Thread-safe. Never blocks for long and never fails the caller.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(LogLevel level, std::string_view line) = 0;
  // Writes to a file of the same name from now on, if it writes to one: that was moved away.
  virtual absl::Status Reopen() { return absl::OkStatus(); }
};

// Thread-safe.
class Log {
 public:
  // Lines below `level` are dropped before they are formatted. `name`, unless empty, begins each
  // line: "rank 3: ...".
  explicit Log(LogSink& sink, LogLevel level = LogLevel::kInfo, std::string name = "");

  bool enabled(LogLevel level) const { return level >= level_; }
  absl::Status Reopen() { return sink_.Reopen(); }

  template <typename... Args>
  void Debug(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kDebug, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void Info(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kInfo, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void Warn(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kWarn, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void Error(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kError, format, fmt::make_format_args(args...));
  }

  // Warns at most once per `interval` about what `key` names; the next line that goes out says how
  // many were left out. `now` is the executor's. Some 1,000 keys are remembered,
  // the first 4 KiB of each.
  template <typename... Args>
  void WarnEvery(std::string_view key, Duration interval, Time now,
                 fmt::format_string<Args...> format, Args&&... args) {
    if (const Allowance allowance = Allow(key, interval, now); allowance.granted) {
      WriteThrottled(allowance, format, fmt::make_format_args(args...));
    }
  }

 private:
  struct Allowance {
    bool granted = false;
    uint64_t left_out = 0;  // since the last line of this key
  };
  struct Throttle {
    Time last;
    uint64_t left_out = 0;
  };

  void Write(LogLevel level, fmt::string_view format, fmt::format_args args);
  void WriteThrottled(Allowance allowance, fmt::string_view format, fmt::format_args args);
  Allowance Allow(std::string_view key, Duration interval, Time now);

  LogSink& sink_;
  const LogLevel level_;
  const std::string prefix_;
  std::mutex mutex_;                                        // covers the one below
  std::map<std::string, Throttle, std::less<>> throttles_;  // by key
};

}  // namespace unreft
