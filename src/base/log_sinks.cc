#include "base/log_sinks.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <mutex>
#include <utility>

namespace unreft {
namespace {

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%e%z %l unreft[%P] %v";

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

class SpdlogSink final : public LogSink {
 public:
  explicit SpdlogSink(spdlog::sink_ptr sink) : logger_("unreft", std::move(sink)) {
    logger_.set_pattern(kPattern);
    logger_.set_level(spdlog::level::trace);
    logger_.flush_on(spdlog::level::trace);
    // spdlog would print to stderr; there is nobody to tell that a line was lost.
    logger_.set_error_handler([](const std::string&) {});
  }

  void Write(LogLevel level, std::string_view line) override {
    logger_.log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
  }

 private:
  spdlog::logger logger_;  // not registered: spdlog's registry is a global
};

class FileSink final : public LogSink {
 public:
  FileSink(std::string path, uint64_t bytes_max) : path_(std::move(path)), bytes_max_(bytes_max) {}

  absl::Status Reopen() override {
    constexpr size_t kOldFiles = 1;
    try {
      auto opened = std::make_shared<SpdlogSink>(
          std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path_, bytes_max_, kOldFiles));
      const std::lock_guard lock(mutex_);
      sink_.swap(opened);
    } catch (const spdlog::spdlog_ex& error) {
      return absl::UnavailableError(fmt::format("log file {}: {}", path_, error.what()));
    }
    return absl::OkStatus();
  }

  void Write(LogLevel level, std::string_view line) override {
    std::shared_ptr<SpdlogSink> sink;
    {
      const std::lock_guard lock(mutex_);
      sink = sink_;
    }
    sink->Write(level, line);
  }

 private:
  const std::string path_;
  const uint64_t bytes_max_;
  std::mutex mutex_;                  // covers the one below
  std::shared_ptr<SpdlogSink> sink_;  // shared with the lines under way
};

}  // namespace

std::unique_ptr<LogSink> StderrLogSink() {
  return std::make_unique<SpdlogSink>(std::make_shared<spdlog::sinks::stderr_sink_mt>());
}

absl::StatusOr<std::unique_ptr<LogSink>> FileLogSink(const std::string& path, uint64_t bytes_max) {
  auto sink = std::make_unique<FileSink>(path, bytes_max);
  if (absl::Status status = sink->Reopen(); !status.ok()) return status;
  return sink;
}

}  // namespace unreft
