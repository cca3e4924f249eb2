#include "tools/cli/daemon_control.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <filesystem>

#include "base/private_directory.h"
#include "base/rocks_record_store.h"
#include "base/shm_segment_store.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/process_search.h"
#include "tools/cli/spawn.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kAnswerTimeout(2000);
constexpr Milliseconds kLockTimeout(2000);  // that a daemon makes first of all
constexpr Milliseconds kPollInterval(20);

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
  FoundProcess daemon = FindDaemon(place);
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

}  // namespace

std::vector<std::string> DaemonArgv(const Place& place, const StartRequest& request) {
  std::vector<std::string> argv = {
      request.daemon_path.empty() ? SiblingPath(kDaemonName) : request.daemon_path,
      "--job",
      place.job,
      "--node",
      std::to_string(place.node),
      "--run-dir",
      place.run_dir,
      "--allow-inject"};
  argv.insert(argv.end(), request.daemon_words.begin(), request.daemon_words.end());
  return argv;
}

absl::StatusOr<StartResult> StartDaemon(const Place& place, const StartRequest& request) {
  if (absl::Status status = MakePrivateDirectory(place.run_dir); !status.ok()) return status;
  auto answer = AskDaemon(place, "status", nlohmann::json::object(), kAnswerTimeout);
  if (answer.ok()) return StartResult{true, std::move(*answer)};

  FoundProcess holder = FindDaemon(place);
  if (!holder.ok()) return holder.status();
  FoundProcess supervisor = FindSupervisor(place);
  if (!supervisor.ok()) return supervisor.status();
  if (!holder->has_value() && supervisor->has_value()) {  // it is about to start the next one
    answer = WaitAnswer(place, std::move(**supervisor), request.timeout);
    if (!answer.ok()) return answer.status();
    return StartResult{true, std::move(*answer)};
  }
  if (holder->has_value()) {  // it is starting, or busy; one whose files were removed is neither
    const bool has_lock = std::filesystem::exists(place.daemon_lock());
    answer = WaitAnswer(place, std::nullopt,
                        has_lock ? request.timeout : std::min(request.timeout, kLockTimeout));
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

FoundProcess FindDaemon(const Place& place) {
  return FindServer(place.daemon_lock(), kDaemonName, {place.job, place.run_dir});
}

FoundProcess FindSupervisor(const Place& place) {
  return FindServer(place.supervisor_lock(), kSupervisorName,
                    {"supervise", place.job, place.run_dir});
}

absl::StatusOr<StopResult> StopDaemon(const Place& place, Milliseconds timeout) {
  return StopServers(place, FindSupervisor, FindDaemon, timeout);
}

absl::StatusOr<std::vector<SegmentInfo>> ListMemory(const Place& place) {
  return ShmSegmentStore().List(SegmentPrefix(place.job, place.node));
}

absl::StatusOr<std::vector<SegmentInfo>> RemoveMemory(const Place& place) {
  // Also by one that cannot be seen from here, as in a container of its own. One that was killed a
  // moment ago holds its locks until the last of its threads has ended.
  const Deadline deadline(kLockTimeout);
  while (ShmSegmentStore().IsServed(SegmentPrefix(place.job, place.node) + "node")) {
    if (!deadline.passed()) {
      poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
      continue;
    }
    return absl::FailedPreconditionError(
        fmt::format("{}: an unreftd serves its memory, but not from {}: stop that one, by the "
                    "--run-dir it was started with and where its processes are seen",
                    place.Name(), place.run_dir));
  }
  absl::StatusOr<std::vector<SegmentInfo>> segments = ListMemory(place);
  if (!segments.ok()) return segments.status();
  std::vector<SegmentInfo> removed;
  std::vector<std::string> left;  // as little as possible
  for (const SegmentInfo& segment : *segments) {
    const absl::Status status = ShmSegmentStore().Remove(segment.name);
    if (status.ok() || absl::IsNotFound(status)) {
      removed.push_back(segment);
    } else {
      left.push_back(fmt::format("{} ({} bytes): {}", segment.name, segment.bytes,
                                 std::string(status.message())));
    }
  }
  const absl::Status records = RocksRecordStore::Destroy(place.records());
  if (left.empty() && records.ok()) return removed;
  if (left.empty()) return records;
  return absl::InternalError(fmt::format("{} of {} segments are left: {}", left.size(),
                                         segments->size(), absl::StrJoin(left, "; ")));
}

uint64_t TotalBytes(const std::vector<SegmentInfo>& segments) {
  uint64_t bytes = 0;
  for (const SegmentInfo& segment : segments) bytes += segment.bytes;
  return bytes;
}

absl::Status CheckNoOtherDaemon(const Place& place) {
  FoundProcess own = FindDaemon(place);
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
