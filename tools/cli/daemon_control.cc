#include "tools/cli/daemon_control.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/shm_segment_store.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/process_search.h"
#include "tools/cli/spawn.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kAnswerTimeout(2000);
constexpr Milliseconds kPollInterval(20);
constexpr size_t kLogLinesShown = 5;

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

std::vector<std::string> SupervisorArgv(const Place& place, const StartRequest& request) {
  std::vector<std::string> argv = {SelfPath(),  "supervise",  "--job",
                                   place.job,   "--node",     std::to_string(place.node),
                                   "--run-dir", place.run_dir};
  if (!request.daemon_path.empty()) {
    argv.insert(argv.end(), {"--daemon", request.daemon_path});
  }
  argv.push_back("--");
  argv.insert(argv.end(), request.daemon_words.begin(), request.daemon_words.end());
  return argv;
}

absl::StatusOr<pid_t> StartDetached(const Place& place, const StartRequest& request) {
  SpawnRequest spawn;
  spawn.argv = request.supervise ? SupervisorArgv(place, request) : DaemonArgv(place, request);
  return SpawnDetached(std::move(spawn), place.log());
}

bool HasDaemon(const Place& place) {
  absl::StatusOr<std::optional<ProcessHandle>> daemon = FindDaemon(place);
  return daemon.ok() && daemon->has_value();
}

// Waits until a daemon answers. `started`, if any, is what must live meanwhile, unless another
// daemon came first.
absl::StatusOr<nlohmann::json> WaitAnswer(const Place& place,
                                          const std::optional<ProcessHandle>& started,
                                          Milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    const bool ended = started.has_value() && started->WaitEnd(Milliseconds(0));
    auto status = AskDaemon(place, "status", nlohmann::json::object(),
                            std::min(kAnswerTimeout, deadline.left() + kPollInterval));
    if (status.ok()) return status;
    if (ended && !HasDaemon(place)) {
      return absl::FailedPreconditionError(
          fmt::format("{}: unreftd (pid {}) ended before it answered; its log {} ends with:{}",
                      place.Name(), started->pid(), place.log(), LastLines(place.log())));
    }
    if (deadline.passed()) {
      return absl::DeadlineExceededError(fmt::format(
          "{}: waited {} ms for unreftd to answer at {} (its log: {}): {}", place.Name(),
          timeout.count(), place.socket(), place.log(), std::string(status.status().message())));
    }
    poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
  }
}

// The holder of the lock. Without the file, which a cleaner of /tmp may have taken away from under
// a living process: the process that was started by these words.
absl::StatusOr<std::optional<ProcessHandle>> FindServer(const std::string& lock_path,
                                                        const std::string& program,
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

absl::StatusOr<bool> StopIfAny(absl::StatusOr<std::optional<ProcessHandle>> holder,
                               Milliseconds timeout, std::optional<pid_t>& stopped) {
  if (!holder.ok()) return holder.status();
  if (!holder->has_value()) return false;
  absl::StatusOr<bool> killed = StopProcess(**holder, timeout);
  if (killed.ok()) stopped = (*holder)->pid();
  return killed;
}

}  // namespace

std::vector<std::string> DaemonArgv(const Place& place, const StartRequest& request) {
  std::vector<std::string> argv = {
      request.daemon_path.empty() ? SiblingPath(kDaemonName) : request.daemon_path,
      "--job",
      place.job,
      "--node",
      std::to_string(place.node),
      "--run-dir",
      place.run_dir};
  argv.insert(argv.end(), request.daemon_words.begin(), request.daemon_words.end());
  return argv;
}

absl::StatusOr<StartResult> StartDaemon(const Place& place, const StartRequest& request) {
  if (absl::Status status = MakeRunDir(place); !status.ok()) return status;
  auto answer = AskDaemon(place, "status", nlohmann::json::object(), kAnswerTimeout);
  if (answer.ok()) return StartResult{true, std::move(*answer)};

  absl::StatusOr<std::optional<ProcessHandle>> holder = FindDaemon(place);
  if (!holder.ok()) return holder.status();
  if (holder->has_value()) {  // it is starting, or busy
    answer = WaitAnswer(place, std::nullopt, request.timeout);
    if (!answer.ok()) return answer.status();
    return StartResult{true, std::move(*answer)};
  }
  if (absl::Status status = CheckNoOtherDaemon(place); !status.ok()) return status;
  absl::StatusOr<pid_t> pid = StartDetached(place, request);
  if (!pid.ok()) return pid.status();
  absl::StatusOr<ProcessHandle> started = ProcessHandle::Open(*pid);
  if (!started.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: unreftd (pid {}) ended at once; its log {} ends with:{}", place.Name(),
                    *pid, place.log(), LastLines(place.log())));
  }
  answer = WaitAnswer(place, std::move(*started), request.timeout);
  if (!answer.ok()) return answer.status();
  return StartResult{false, std::move(*answer)};
}

absl::StatusOr<std::optional<ProcessHandle>> FindDaemon(const Place& place) {
  return FindServer(place.daemon_lock(), kDaemonName, {place.job, place.run_dir});
}

absl::StatusOr<std::optional<ProcessHandle>> FindSupervisor(const Place& place) {
  return FindServer(place.supervisor_lock(), kSupervisorName,
                    {"supervise", place.job, place.run_dir});
}

absl::StatusOr<StopResult> StopDaemon(const Place& place, Milliseconds timeout) {
  StopResult result;
  // The supervisor first, or it would start the daemon again. It takes its daemon with it.
  absl::StatusOr<bool> killed = StopIfAny(FindSupervisor(place), timeout, result.supervisor);
  if (!killed.ok()) return killed.status();
  result.killed = *killed;
  killed = StopIfAny(FindDaemon(place), timeout, result.daemon);
  if (!killed.ok()) return killed.status();
  result.killed |= *killed;
  return result;
}

absl::StatusOr<std::vector<SegmentInfo>> ListMemory(const Place& place) {
  return ShmSegmentStore().List(SegmentPrefix(place.job, place.node));
}

uint64_t TotalBytes(const std::vector<SegmentInfo>& segments) {
  uint64_t bytes = 0;
  for (const SegmentInfo& segment : segments) bytes += segment.bytes;
  return bytes;
}

absl::Status CheckNoOtherDaemon(const Place& place) {
  absl::StatusOr<std::optional<ProcessHandle>> own = FindDaemon(place);
  if (!own.ok()) return own.status();
  const std::string memory = "/dev/shm" + SegmentPrefix(place.job, place.node);
  for (const pid_t pid : ProcessesNamed(kDaemonName)) {
    if (own->has_value() && (*own)->pid() == pid) continue;
    if (!MapsFile(pid, memory)) continue;
    return absl::FailedPreconditionError(
        fmt::format("{}: unreftd (pid {}) serves its memory, but not from {}; give the --run-dir "
                    "it was started with",
                    place.Name(), pid, place.run_dir));
  }
  return absl::OkStatus();
}

}  // namespace unreft::cli
