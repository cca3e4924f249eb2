#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/job_memory.h"
#include "base/lock_file.h"
#include "base/run_owner.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/attached_ranks.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/meta_control.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kAnswerTimeout(2000);

// What a down did.
struct Outcome {
  StopResult stopped;
  std::vector<SegmentInfo> removed;
  std::vector<SegmentInfo> kept;
};

// A daemon that was killed a moment ago holds its lock until the last of its threads has ended.
absl::StatusOr<LockFile> AcquireSoon(const Place& place, Milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    absl::StatusOr<LockFile> lock = LockFile::Acquire(place.run_dir, kDaemonLock);
    if (!absl::IsFailedPrecondition(lock.status()) || deadline.passed()) return lock;
    poll(nullptr, 0, 10);
  }
}

struct DownOptions {
  bool keep_memory = false;
  bool force = false;
};

// It may be the only copy that there will be of what the memory has.
absl::Status CheckNothingIsExported(const Place& place, Milliseconds timeout) {
  const auto status = AskDaemon(place, "export-status", nlohmann::json::object(),
                                std::min(timeout, kAnswerTimeout));
  const std::string state = status.ok() ? Cell(*status, "state") : "";
  if (state != "pinning" && state != "looking" && state != "writing") return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} writes a durable copy to {}, which would stay incomplete: wait for it, end it "
      "by 'unreft export --cancel', or --keep-memory; --force does it all the same",
      place.Name(), Cell(*status, "dir")));
}

// Memory that is kept costs the ranks no more than an upgrade does.
absl::Status CheckNobodyNeedsIt(const Place& place, const DownOptions& options,
                                Milliseconds timeout) {
  if (options.keep_memory || options.force) return absl::OkStatus();
  absl::Status status = CheckNothingIsExported(place, timeout);
  if (!status.ok()) return status;
  const std::vector<AttachedRank> ranks = FindAttachedRanks(place, timeout);
  if (ranks.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{}: they would train on unprotected, and what this node holds of their state would be gone. "
      "End the job first, or --keep-memory for an unreftd that is to follow; --force does it all "
      "the same",
      Describe(place, ranks)));
}

// Of the same job on this host, for who named none of them.
absl::Status CheckOthers(const Context& context, const Outcome& outcome) {
  const bool is_named = context.node_given || !context.run_dir_is_default;
  const bool is_something = outcome.stopped.daemon || outcome.stopped.supervisor ||
                            !outcome.removed.empty() || !outcome.kept.empty();
  if (is_named || is_something) return absl::OkStatus();
  ShmSegmentStore segments;
  const auto all = ListJobMemory(segments);
  if (!all.ok()) return all.status();
  std::string others;
  for (const JobMemory& memory : *all) {
    if (memory.job != context.place.job) continue;
    others += fmt::format("{}node {} ({})", others.empty() ? "" : ", ", memory.node,
                          Count(memory.segments, "segment"));
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} has neither unreftd nor memory on this host, which has memory of {}: name "
                  "the node by --node, or its --run-dir",
                  context.place.Name(), others));
}

absl::StatusOr<Outcome> TakeDown(const Place& place, bool keep_memory, Milliseconds timeout) {
  if (absl::Status status = CheckNoOtherDaemon(place); !status.ok()) return status;
  absl::StatusOr<StopResult> stopped = StopDaemon(place, timeout);
  if (!stopped.ok()) return stopped.status();
  Outcome outcome{.stopped = *stopped};
  std::error_code ignored;

  std::optional<LockFile> lock;  // no daemon starts while its memory goes
  if (std::filesystem::is_directory(place.run_dir)) {
    absl::StatusOr<LockFile> acquired = AcquireSoon(place, timeout);
    if (!acquired.ok()) return acquired.status();
    lock = std::move(*acquired);
    // Of a daemon that was killed; absent after an orderly stop.
    std::filesystem::remove(place.socket(), ignored);
  }
  absl::StatusOr<std::vector<SegmentInfo>> memory =
      keep_memory ? ListMemory(place) : RemoveMemory(place);
  if (!memory.ok()) return memory.status();
  (keep_memory ? outcome.kept : outcome.removed) = *std::move(memory);
  if (!keep_memory) std::filesystem::remove(place.run_dir + "/" + kRunOwnerFile, ignored);
  return outcome;
}

nlohmann::json Document(const Place& place, const Outcome& outcome) {
  nlohmann::json document{{"job", place.job},
                          {"node", place.node},
                          {"run_dir", place.run_dir},
                          {"daemon_pid", nullptr},
                          {"supervisor_pid", nullptr},
                          {"killed", outcome.stopped.killed},
                          {"segments_removed", outcome.removed.size()},
                          {"bytes_removed", TotalBytes(outcome.removed)},
                          {"segments_kept", outcome.kept.size()},
                          {"bytes_kept", TotalBytes(outcome.kept)}};
  if (outcome.stopped.daemon) document["daemon_pid"] = *outcome.stopped.daemon;
  if (outcome.stopped.supervisor) document["supervisor_pid"] = *outcome.stopped.supervisor;
  return document;
}

std::string Text(const Place& place, const Outcome& outcome, bool keep_memory) {
  const StopResult& stopped = outcome.stopped;
  std::string text = place.Name() + ": ";
  if (stopped.supervisor) text += fmt::format("supervisor (pid {}) stopped, ", *stopped.supervisor);
  text += stopped.daemon       ? fmt::format("unreftd (pid {}) stopped", *stopped.daemon)
          : stopped.supervisor ? "unreftd stopped with it"
                               : "no unreftd was up";
  if (stopped.killed) text += " by SIGKILL, it did not follow SIGTERM in time";
  const auto& segments = keep_memory ? outcome.kept : outcome.removed;
  return text + fmt::format("; {} ({}) {}\n", Count(segments.size(), "segment"),
                            HumanBytes(TotalBytes(segments)), keep_memory ? "kept" : "removed");
}

// Every node, then what they agreed by. Goes on after a failure: as little as possible stays.
int DownAll(const Context& context, const Cluster& cluster, const DownOptions& options) {
  const bool keep_memory = options.keep_memory;
  for (uint64_t node = 0; node < cluster.places(); ++node) {
    const absl::Status status =
        CheckNobodyNeedsIt(cluster.NodePlace(node), options, context.timeout());
    if (!status.ok()) return Fail(context, status);
  }
  nlohmann::json document{{"job", cluster.place.job},
                          {"run_dir", cluster.place.run_dir},
                          {"nodes", nlohmann::json::array()}};
  std::string text;
  absl::Status failed;
  for (uint64_t node = 0; node < cluster.places(); ++node) {
    const Place place = cluster.NodePlace(node);
    absl::StatusOr<Outcome> outcome = TakeDown(place, keep_memory, context.timeout());
    if (!outcome.ok()) {
      failed.Update(outcome.status());
      continue;
    }
    document["nodes"].push_back(Document(place, *outcome));
    text += Text(place, *outcome, keep_memory);
  }
  absl::StatusOr<StopResult> meta =
      StopServers(cluster.place, FindMetaSupervisor, FindMeta, context.timeout());
  failed.Update(meta.status());
  if (failed.ok() && !keep_memory) failed = RemoveCluster(cluster);
  if (!failed.ok()) return Fail(context, failed);
  document["meta_pid"] = nullptr;
  if (meta->daemon) document["meta_pid"] = *meta->daemon;
  const bool stopped = meta->daemon || meta->supervisor;
  text += fmt::format("job {}: the meta store was {}\n", cluster.place.job,
                      stopped ? "stopped" : "not up");
  Print(context, document, text);
  return kExitOk;
}

int Down(const Context& context, const DownOptions& options) {
  if (const Cluster* cluster = context.all_nodes()) return DownAll(context, *cluster, options);
  absl::Status status = CheckNobodyNeedsIt(context.place, options, context.timeout());
  if (!status.ok()) return Fail(context, status);
  absl::StatusOr<Outcome> outcome = TakeDown(context.place, options.keep_memory, context.timeout());
  if (!outcome.ok()) return Fail(context, outcome.status());
  if (status = CheckOthers(context, *outcome); !status.ok()) return Fail(context, status);
  Print(context, Document(context.place, *outcome),
        Text(context.place, *outcome, options.keep_memory));
  return kExitOk;
}

}  // namespace

void AddDown(CLI::App& app, Context& context) {
  auto options = std::make_shared<DownOptions>();
  CLI::App* command = AddCommand(
      app, "down", "stop unreftd and remove its memory; also after a crash, when none is up");
  command->add_flag("--keep-memory", options->keep_memory,
                    "leave memory and records for the next unreftd");
  command->add_flag("--force", options->force,
                    "also while ranks are attached: they train on unprotected");
  OnChosenForAll(command, context, [&context, options] { return Down(context, *options); });
}

}  // namespace unreft::cli
