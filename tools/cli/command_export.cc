#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "durable/cold_place.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

constexpr std::chrono::milliseconds kAskEvery(300);
constexpr std::chrono::seconds kSayEvery(2);
constexpr std::chrono::seconds kSilentMax(30);
constexpr char kDcp[] = "dcp";

struct ExportOptions {
  std::string directory;
  std::optional<uint64_t> step;
  std::string format = kDcp;
  uint64_t bytes_per_s = 0;
  std::vector<std::string> map;
  bool cancel = false;
  bool status = false;
};

std::string Progress(const nlohmann::json& status) {
  return fmt::format("version {}: {} of {} written by {} nodes", VersionCell(status),
                     BytesCell(status, "written"), BytesCell(status, "bytes"),
                     Cell(status, "nodes"));
}

// What a user of a copy in safetensors has to know of it.
std::string OfWeights(const nlohmann::json& status) {
  std::string text = fmt::format(
      "it has the weights alone: {} other tensors, hyperparameters and extras are not in it, and "
      "no training goes on from it\n",
      Cell(status, "tensors_left_out"));
  if (!status.value("has_index", false)) {
    text +=
        "tensors lie in pieces in the files of several ranks, and there is no index: "
        "HuggingFaceStorageReader of torch.distributed.checkpoint puts them together\n";
  }
  return text;
}

std::string Finished(const nlohmann::json& status) {
  const double seconds = status.value("seconds", 0.0);
  const double bytes = status.value("copy_bytes", 0.0);
  std::string text = fmt::format(
      "version {} of {} ranks is complete in {}: {} tensors, {} values, {} in {:.1f} s "
      "({:.2f} GB/s)\n",
      VersionCell(status), Cell(status, "world"), Cell(status, "dir"), Cell(status, "tensors"),
      Cell(status, "values"), BytesCell(status, "copy_bytes"), seconds,
      seconds > 0 ? bytes / 1e9 / seconds : 0.0);
  for (const nlohmann::json& key : status.value("left_out", nlohmann::json::array())) {
    text += fmt::format(
        "{}: it is of a kind that torch.load does not read or a copy does not have, and is in the "
        "extras of its rank alone\n",
        key.get<std::string>());
  }
  if (Cell(status, "format") == "safetensors") text += OfWeights(status);
  return text;
}

absl::Status Failure(const nlohmann::json& status) {
  return absl::FailedPreconditionError(fmt::format("export of version {} to {}: {}",
                                                   VersionCell(status), Cell(status, "dir"),
                                                   Cell(status, "error")));
}

// Of a daemon that runs no copy, what it says of its last one.
int Show(const Context& context, const nlohmann::json& status) {
  const std::string state = Cell(status, "state");
  std::string text = "this daemon has run no export\n";
  if (state == "done") {
    text = Finished(status);
  } else if (state == "failed") {
    text = fmt::format("{}\n", std::string(Failure(status).message()));
  } else if (status.value("state", nlohmann::json()).is_string()) {
    text = Progress(status) + "\n";
  }
  Print(context, status, text);
  return kExitOk;
}

// The daemon that runs the copy is asked until it is over.
int Follow(const Context& context, const Place& place, nlohmann::json status) {
  const std::string id = Cell(status, "id");
  auto said = std::chrono::steady_clock::now();
  auto heard = said;
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    if (Cell(status, "id") != id) {
      return Fail(context, absl::FailedPreconditionError(
                               "export: its daemon was started anew, or runs another copy by now: "
                               "what came of this one its log says"));
    }
    const std::string state = Cell(status, "state");
    if (state == "failed") return Fail(context, Failure(status));
    if (state == "done") break;
    if (!context.json && now - said >= kSayEvery) {
      said = now;
      Say(Progress(status));
    }
    std::this_thread::sleep_for(kAskEvery);
    auto answer = AskDaemon(place, "export-status", nlohmann::json::object(), context.timeout());
    if (answer.ok()) {
      status = *std::move(answer);
      heard = std::chrono::steady_clock::now();
    } else if (now - heard >= kSilentMax) {
      return Fail(context, absl::Status(answer.status().code(),
                                        fmt::format("export: it may go on, see `unreft export "
                                                    "--status`: {}",
                                                    std::string(answer.status().message()))));
    }
  }
  Print(context, status, Finished(status));
  return kExitOk;
}
// Those of the job that may be asked, the first that answers first.
std::vector<Place> PlacesOf(const Context& context) {
  const Cluster* cluster = context.all_nodes();
  if (cluster == nullptr) return {context.place};
  return NodePlaces(*cluster, context.timeout());
}

// How long ago a daemon's last copy ended; 0 of one that it runs, and none at all of a daemon that
// has run none.
double SinceEnd(const nlohmann::json& status) {
  if (!status.value("state", nlohmann::json()).is_string()) {
    return std::numeric_limits<double>::infinity();
  }
  return status.value("seconds_since", 0.0);
}

// Of the daemon that runs a copy, or ran the last one.
int AskRunning(const Context& context, bool cancel) {
  absl::StatusOr<nlohmann::json> last = absl::UnavailableError("no daemon answers");
  Place of_last = context.place;
  for (const Place& place : PlacesOf(context)) {
    auto answer = AskDaemon(place, "export-status", nlohmann::json::object(), context.timeout());
    if (!answer.ok() && last.ok()) continue;
    if (answer.ok() && last.ok() && SinceEnd(*answer) >= SinceEnd(*last)) continue;
    last = std::move(answer);
    of_last = place;
  }
  if (cancel && last.ok()) {
    last = AskDaemon(of_last, "export-cancel", nlohmann::json::object(), context.timeout());
  }
  if (!last.ok()) return Fail(context, last.status());
  return Show(context, *last);
}

// A daemon of a release that knows DCP alone would write that, whatever it is asked for.
absl::Status CheckFormat(const Context& context, const Place& place, const std::string& format) {
  if (format == kDcp) return absl::OkStatus();
  const auto status =
      AskDaemon(place, "export-status", nlohmann::json::object(), context.timeout());
  if (!status.ok()) return status.status();
  const auto formats = status->value("formats", std::vector<std::string>{kDcp});
  if (std::ranges::find(formats, format) != formats.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("export: its daemon is of another release: needed format '{}', found [{}]",
                  format, fmt::join(formats, ", ")));
}

int Export(const Context& context, const ExportOptions& options) {
  if (options.status || options.cancel) {
    return AskRunning(context, options.cancel);
  }
  if (options.directory.empty()) {
    return Fail(context, absl::InvalidArgumentError(
                             "export: needed the directory to write to, or --status, or --cancel"));
  }
  const bool is_s3 = durable::IsS3Place(options.directory);
  const nlohmann::json arguments{
      {"dir", is_s3 ? options.directory : std::filesystem::absolute(options.directory).string()},
      {"step", options.step.value_or(0)},
      {"format", options.format},
      {"bytes_per_s", options.bytes_per_s},
      {"map", options.map}};
  absl::StatusOr<nlohmann::json> answer = absl::UnavailableError("no daemon answers");
  for (const Place& place : PlacesOf(context)) {
    if (absl::Status status = CheckFormat(context, place, options.format); !status.ok()) {
      answer = status;
    } else {
      answer = AskDaemon(place, "export", arguments, context.timeout());
    }
    if (absl::IsUnavailable(answer.status())) continue;
    if (!answer.ok()) break;
    return Follow(context, place, *std::move(answer));
  }
  return Fail(context, answer.status());
}

}  // namespace

void AddExport(CLI::App& app, Context& context) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      AddCommand(app, "export",
                 "write a committed version to files that PyTorch reads, while training goes on");
  command->add_option("DIR", options->directory,
                      "a directory that all nodes share, or s3://BUCKET/PREFIX; it is made if it "
                      "is missing, and has to be empty");
  command->add_option("--version", options->step, "of this step, if it is what is committed now")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--format", options->format,
                   "dcp: of torch.distributed.checkpoint, all that was stored; safetensors: the "
                   "model's parameters and buffers alone")
      ->check(CLI::IsMember({kDcp, "safetensors"}));
  command->add_option("--bytes-per-s", options->bytes_per_s,
                      "the most that each node writes; 0: as fast as it goes");
  command->add_option("--map", options->map,
                      "FROM=TO: keys that begin with FROM begin with TO instead; may be repeated");
  command->add_flag("--status", options->status,
                    "how far the export is that runs, or what came "
                    "of the last one");
  command->add_flag("--cancel", options->cancel, "end the export that runs");
  command->footer(
      "It pins the version meanwhile: unreftd --pins 1 makes room for that. The copy is complete "
      "when DIR has .metadata, and one in safetensors when it has .unreft/copy and no "
      "incomplete.safetensors any more. Keys in safetensors are bare names, without the `model.` "
      "of those of a DCP copy; --map model.=model. keeps it.");
  OnChosenForAll(command, context, [&context, options] { return Export(context, *options); });
}

}  // namespace unreft::cli
