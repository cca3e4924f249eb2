// CaptureLogSink: keeps the lines of a test's log, each as "warn: text". Thread-safe.
#pragma once

#include <fmt/format.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"

namespace unreft {

class CaptureLogSink final : public LogSink {
 public:
  void Write(LogLevel level, std::string_view line) override {
    std::lock_guard lock(mutex_);
    lines_.push_back(fmt::format("{}: {}", LogLevelName(level), line));
  }

  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }

  // How many lines contain `text`.
  size_t Count(std::string_view text) const {
    size_t count = 0;
    for (const std::string& line : lines()) count += line.find(text) != std::string::npos;
    return count;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace unreft
