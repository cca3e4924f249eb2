#include "tools/cli/server_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>

#include "tools/cli/process_search.h"

namespace unreft::cli {
namespace {

constexpr size_t kLogLinesShown = 5;

absl::StatusOr<bool> StopIfAny(FoundProcess holder, Milliseconds timeout,
                               std::optional<pid_t>& stopped) {
  if (!holder.ok()) return holder.status();
  if (!holder->has_value()) return false;
  absl::StatusOr<bool> killed = StopProcess(**holder, timeout);
  if (killed.ok()) stopped = (*holder)->pid();
  return killed;
}

absl::Status KillIfAny(FoundProcess holder, Milliseconds timeout, std::optional<pid_t>& stopped) {
  if (!holder.ok()) return holder.status();
  if (!holder->has_value()) return absl::OkStatus();
  const absl::Status status = (*holder)->Signal(SIGKILL);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  if (!status.ok()) return status;
  stopped = (*holder)->pid();
  if ((*holder)->WaitEnd(timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(fmt::format("process {} has not ended {} ms after SIGKILL",
                                                 (*holder)->pid(), timeout.count()));
}

}  // namespace

FoundProcess FindServer(const std::string& lock_path, const std::string& program,
                        const std::set<std::string>& words) {
  if (std::filesystem::exists(lock_path)) return FindLockHolder(lock_path, program);
  for (const pid_t pid : ProcessesNamed(program)) {
    absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(pid);
    if (!process.ok()) continue;
    const std::vector<std::string> found = CommandLine(pid);
    const std::set<std::string> found_words(found.begin(), found.end());
    if (std::includes(found_words.begin(), found_words.end(), words.begin(), words.end())) {
      return std::move(*process);
    }
  }
  return std::nullopt;
}

absl::StatusOr<StopResult> StopServers(const Place& place, Finder supervisor, Finder daemon,
                                       Milliseconds timeout) {
  StopResult result;
  // It takes its daemon with it.
  absl::StatusOr<bool> killed = StopIfAny(supervisor(place), timeout, result.supervisor);
  if (!killed.ok()) return killed.status();
  result.killed = *killed;
  killed = StopIfAny(daemon(place), timeout, result.daemon);
  if (!killed.ok()) return killed.status();
  result.killed |= *killed;
  return result;
}

absl::StatusOr<StopResult> KillServers(const Place& place, Finder supervisor, Finder daemon,
                                       Milliseconds timeout) {
  StopResult result{.killed = true};
  absl::Status status = KillIfAny(supervisor(place), timeout, result.supervisor);
  if (status.ok()) status = KillIfAny(daemon(place), timeout, result.daemon);
  if (!status.ok()) return status;
  return result;
}

std::string LastLines(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLogLinesShown) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

}  // namespace unreft::cli
