// Trace: what happened in a simulated world, line by line in virtual time, and the first failure.
//
// The hash covers every line, so that two runs of one seed can be compared. Single-threaded.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::sim {

class Trace {
 public:
  Trace(const SimScheduler& scheduler, bool verbose) : scheduler_(scheduler), verbose_(verbose) {}

  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    AddLine(fmt::format(format, std::forward<Args>(args)...));
  }

  // A rule is broken: the run ends. Only the first is kept.
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    std::string what = fmt::format(format, std::forward<Args>(args)...);
    AddLine("FAILED: " + what);
    if (!failure_) failure_ = std::move(what);
  }

  Duration now() const { return scheduler_.now(); }
  // Number of the event that runs or ran last.
  uint64_t event() const { return scheduler_.events_run(); }
  const std::optional<std::string>& failure() const { return failure_; }
  uint64_t hash() const { return hash_; }
  // The last lines, oldest first.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void AddLine(std::string line);

  const SimScheduler& scheduler_;
  const bool verbose_;
  std::deque<std::string> tail_;
  std::optional<std::string> failure_;
  uint64_t hash_ = 0xcbf29ce484222325;
};

// The log of a simulated process, as lines of the trace.
class TraceSink final : public LogSink {
 public:
  explicit TraceSink(Trace& trace) : trace_(trace) {}
  void Write(LogLevel level, std::string_view line) override {
    trace_.Add("{} {}", LogLevelName(level), line);
  }

 private:
  Trace& trace_;
};

}  // namespace unreft::sim
