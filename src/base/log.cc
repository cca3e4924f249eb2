#include "base/log.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace unreft {
namespace {

constexpr size_t kThrottlesMax = 1000;
constexpr size_t kKeyBytesMax = kTextBytesMax;
// What another process says, and what is said of it.
constexpr size_t kLineBytesMax = 2 * kTextBytesMax;

struct NamedLevel {
  std::string_view name;
  LogLevel level;
};
constexpr std::array<NamedLevel, 5> kLevels = {{{"debug", LogLevel::kDebug},
                                                {"info", LogLevel::kInfo},
                                                {"warn", LogLevel::kWarn},
                                                {"error", LogLevel::kError},
                                                {"off", LogLevel::kOff}}};

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  for (const auto& [name, level] : kLevels) {
    if (name == text) return level;
  }
  return absl::InvalidArgumentError(
      fmt::format("log level \"{}\": needs debug, info, warn, error or off", text));
}

std::string_view LogLevelName(LogLevel level) {
  for (const NamedLevel& named : kLevels) {
    if (named.level == level) return named.name;
  }
  return "?";
}

Log::Log(LogSink& sink, LogLevel level, std::string name)
    : sink_(sink), level_(level), prefix_(name.empty() ? "" : name + ": ") {}

void Log::Write(LogLevel level, fmt::string_view format, fmt::format_args args) {
  if (!enabled(level)) return;
  // One line, whatever was put into it: what follows a line's end would be taken for another.
  sink_.Write(level, CleanText(prefix_ + fmt::vformat(format, args), kLineBytesMax));
}

void Log::WriteThrottled(Allowance allowance, fmt::string_view format, fmt::format_args args) {
  std::string line = CleanText(prefix_ + fmt::vformat(format, args), kLineBytesMax);
  if (allowance.left_out > 0) line += fmt::format(" ({} more like it before)", allowance.left_out);
  sink_.Write(LogLevel::kWarn, line);
}

Log::Allowance Log::Allow(std::string_view key, Duration interval, Time now) {
  if (!enabled(LogLevel::kWarn)) return {};
  key = key.substr(0, kKeyBytesMax);
  std::lock_guard lock(mutex_);
  const auto found = throttles_.find(key);
  if (found == throttles_.end()) {
    if (throttles_.size() >= kThrottlesMax) {
      throttles_.erase(std::min_element(
          throttles_.begin(), throttles_.end(),
          [](const auto& a, const auto& b) { return a.second.last < b.second.last; }));
    }
    throttles_[std::string(key)] = {now};
    return {.granted = true};
  }
  Throttle& throttle = found->second;
  if (now - throttle.last < interval) {
    ++throttle.left_out;
    return {};
  }
  return {.granted = true, .left_out = std::exchange(throttle, {now}).left_out};
}

}  // namespace unreft
