#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "base/lock_file.h"
#include "base/shm_segment_store.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// What a down did.
struct Outcome {
  StopResult stopped;
  std::vector<SegmentInfo> removed;
  std::vector<SegmentInfo> kept;
};

absl::Status RemoveMemory(const Place& place, Outcome& outcome) {
  absl::StatusOr<std::vector<SegmentInfo>> segments = ListMemory(place);
  if (!segments.ok()) return segments.status();
  for (const SegmentInfo& segment : *segments) {
    const absl::Status status = ShmSegmentStore().Remove(segment.name);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    outcome.removed.push_back(segment);
  }
  // Records are an index over the memory that is gone.
  std::error_code error;
  std::filesystem::remove_all(place.records(), error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(fmt::format("remove {}: {}", place.records(), error.message()));
}

absl::Status KeepMemory(const Place& place, Outcome& outcome) {
  absl::StatusOr<std::vector<SegmentInfo>> segments = ListMemory(place);
  if (segments.ok()) outcome.kept = std::move(*segments);
  return segments.status();
}

absl::StatusOr<Outcome> TakeDown(const Place& place, bool keep_memory, Milliseconds timeout) {
  if (absl::Status status = CheckNoOtherDaemon(place); !status.ok()) return status;
  absl::StatusOr<StopResult> stopped = StopDaemon(place, timeout);
  if (!stopped.ok()) return stopped.status();
  Outcome outcome{.stopped = *stopped};

  std::optional<LockFile> lock;  // no daemon starts while its memory goes
  if (std::filesystem::is_directory(place.run_dir)) {
    absl::StatusOr<LockFile> acquired = LockFile::Acquire(place.run_dir, kDaemonLock);
    if (!acquired.ok()) return acquired.status();
    lock = std::move(*acquired);
    std::error_code ignored;  // of a daemon that was killed; absent after an orderly stop
    std::filesystem::remove(place.socket(), ignored);
  }
  absl::Status status = keep_memory ? KeepMemory(place, outcome) : RemoveMemory(place, outcome);
  if (!status.ok()) return status;
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

int Down(const Context& context, bool keep_memory) {
  absl::StatusOr<Outcome> outcome = TakeDown(context.place, keep_memory, context.timeout());
  if (!outcome.ok()) return Fail(context, outcome.status());
  Print(context, Document(context.place, *outcome), Text(context.place, *outcome, keep_memory));
  return kExitOk;
}

}  // namespace

void AddDown(CLI::App& app, Context& context) {
  auto keep_memory = std::make_shared<bool>(false);
  CLI::App* command = AddCommand(
      app, "down", "stop unreftd and remove its memory; also after a crash, when none is up");
  command->add_flag("--keep-memory", *keep_memory, "leave memory and records for the next unreftd");
  OnChosen(command, context, [&context, keep_memory] { return Down(context, *keep_memory); });
}

}  // namespace unreft::cli
