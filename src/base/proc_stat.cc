#include "base/proc_stat.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>

#include "base/unique_fd.h"

namespace unreft {
namespace {

// The first field after the name is the third, the start time the 22nd.
constexpr int kFieldsToStartTime = 20;

absl::Status Malformed(std::string_view text) {
  return absl::InternalError(fmt::format("malformed /proc/<pid>/stat: {}", text));
}

// What follows the name of a line of /proc/<pid>/status; nothing if there is no such line.
std::string_view LineOf(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(name)) return line.substr(name.size());
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return {};
}

absl::StatusOr<std::string> ReadProcFile(const auto& pid, std::string_view name) {
  const std::string path = fmt::format("/proc/{}/{}", pid, name);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t count = fd ? read(fd.get(), text, sizeof(text)) : -1;
  if (count >= 0) return std::string(text, static_cast<size_t>(count));
  if (errno == ENOENT || errno == ESRCH) {
    return absl::NotFoundError(fmt::format("no process {}", pid));
  }
  return absl::ErrnoToStatus(errno, "read " + path);
}

template <typename T>
bool ParseNumber(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// Removes one field and the space after it from the front of `text`.
std::string_view TakeField(std::string_view& text) {
  const size_t end = text.find_first_of(" \n");
  const std::string_view field = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return field;
}

}  // namespace

absl::StatusOr<ProcStat> ParseProcStat(std::string_view text) {
  const size_t name = text.find(" (");
  const size_t name_end = text.rfind(") ");
  ProcStat stat;
  if (name_end == std::string_view::npos || name > name_end ||
      !ParseNumber(text.substr(0, name), stat.pid)) {
    return Malformed(text);
  }
  std::string_view rest = text.substr(name_end + 2);
  std::string_view start_time;
  for (int field = 0; field < kFieldsToStartTime; ++field) start_time = TakeField(rest);
  if (!ParseNumber(start_time, stat.start_time)) return Malformed(text);
  return stat;
}

absl::StatusOr<ProcStat> ReadProcStat(int64_t pid) {
  const auto text = ReadProcFile(pid, "stat");
  if (!text.ok()) return text.status();
  return ParseProcStat(*text);
}

absl::StatusOr<ProcStat> ReadProcStatOfSelf() {
  const auto text = ReadProcFile("self", "stat");
  if (!text.ok()) return text.status();
  auto stat = ParseProcStat(*text);
  if (stat.ok()) stat->pid = getpid();
  return stat;
}

absl::StatusOr<int64_t> ParseOwnPid(std::string_view text) {
  std::string_view pids = LineOf(text, "NSpid:");
  if (pids.empty()) pids = LineOf(text, "Pid:");
  int64_t pid = 0;
  if (!ParseNumber(pids.substr(pids.find_last_of('\t') + 1), pid)) {
    return absl::InternalError(fmt::format("malformed /proc/<pid>/status: {}", text));
  }
  return pid;
}

absl::StatusOr<int64_t> ReadOwnPid(int64_t pid) {
  const auto text = ReadProcFile(pid, "status");
  if (!text.ok()) return text.status();
  return ParseOwnPid(*text);
}

}  // namespace unreft
