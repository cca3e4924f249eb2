#include <fmt/format.h>

#include <csignal>
#include <map>
#include <memory>
#include <optional>

#include "base/run_owner.h"
#include "base/shm_segment_store.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/bit_flip.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/meta_control.h"
#include "tools/cli/process_search.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

const std::map<std::string, Region> kRegions = {{"data", Region::kData},
                                                {"extras", Region::kExtras},
                                                {"manifest", Region::kManifest},
                                                {"header", Region::kHeader}};

struct FlipOptions {
  std::optional<uint64_t> rank;
  std::optional<uint64_t> slot;
  std::optional<uint64_t> offset;
  std::string region = "data";
  uint32_t bit = 0;
  bool force = false;
};

// The trainer of that number, if the process that has it here maps the node's memory: a daemon in
// another pid namespace knows its trainers by other numbers.
absl::StatusOr<ProcessHandle> OpenTrainer(const Place& place, pid_t pid) {
  absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(pid);
  if (!process.ok()) return process;
  if (MapsFile(pid, "/dev/shm" + SegmentPrefix(place.job, place.node))) return process;
  return absl::FailedPreconditionError(
      fmt::format("{}: process {} is none of its trainers here: it does not map their memory. Ask "
                  "where the daemon's processes are seen",
                  place.Name(), pid));
}

// Whether the daemon of the place was started for it, as `unreft up` does.
absl::Status CheckAllowed(const Place& place, bool force, const std::string& cost) {
  const std::optional<RunOwner> owner = ReadRunOwner(place.run_dir);
  if (force || (owner && owner->allows_inject)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: its unreftd, of {}, was started without --allow-inject, and this would {}; "
                  "--force does it all the same",
                  place.Name(), place.run_dir, cost));
}

// The trainer, and where its daemon is.
struct Victim {
  nlohmann::json trainer;
  Place place;
};

absl::StatusOr<nlohmann::json> ChooseTrainerOf(const Context& context, const Place& place,
                                               const std::optional<uint64_t>& rank) {
  auto status = AskDaemon(place, "status", nlohmann::json::object(), context.timeout());
  if (!status.ok()) return status.status();
  for (const nlohmann::json& entry : status->value("ranks", nlohmann::json::array())) {
    if (!entry.value("connected", false)) continue;
    if (!rank || entry.value("rank", UINT64_MAX) == *rank) return entry;
  }
  return absl::NotFoundError(rank ? fmt::format("{}: rank {} is not connected", place.Name(), *rank)
                                  : fmt::format("{}: no rank is connected", place.Name()));
}

// The connected rank asked for, or the first.
absl::StatusOr<Victim> ChooseTrainer(const Context& context, const std::optional<uint64_t>& rank) {
  std::vector<Place> places{context.place};
  if (const Cluster* cluster = context.all_nodes())
    places = NodePlaces(*cluster, context.timeout());
  absl::Status last;
  for (const Place& place : places) {
    auto trainer = ChooseTrainerOf(context, place, rank);
    if (trainer.ok()) return Victim{*std::move(trainer), place};
    last = trainer.status();
  }
  return last;
}

int KillTrainer(const Context& context, const std::optional<uint64_t>& rank, bool force) {
  absl::StatusOr<Victim> victim = ChooseTrainer(context, rank);
  if (!victim.ok()) return Fail(context, victim.status());
  const nlohmann::json* trainer = &victim->trainer;
  const pid_t pid = trainer->value("pid", 0);
  const uint64_t number = trainer->value("rank", uint64_t{0});
  const absl::Status allowed = CheckAllowed(
      victim->place, force,
      fmt::format("kill rank {} (pid {}), and so end the attempt of the job", number, pid));
  if (!allowed.ok()) return Fail(context, allowed);
  absl::StatusOr<ProcessHandle> process = OpenTrainer(victim->place, pid);
  const absl::Status status = process.ok() ? process->Signal(SIGKILL) : process.status();
  if (!status.ok()) return Fail(context, status);
  Print(context, {{"killed", "trainer"}, {"rank", number}, {"pid", pid}, {"signal", SIGKILL}},
        fmt::format("rank {} (pid {}): sent SIGKILL\n", number, pid));
  return kExitOk;
}

int KillDaemon(const Context& context, bool force) {
  auto daemon = FindDaemon(context.place);
  if (!daemon.ok()) return Fail(context, daemon.status());
  if (!daemon->has_value()) {
    return Fail(context, absl::UnavailableError(context.place.Name() + ": no unreftd runs in " +
                                                context.place.run_dir));
  }
  const pid_t pid = (*daemon)->pid();
  const absl::Status allowed = CheckAllowed(
      context.place, force,
      fmt::format("kill it (pid {}): nothing is committed until it is started again", pid));
  if (!allowed.ok()) return Fail(context, allowed);
  if (absl::Status status = (*daemon)->Signal(SIGKILL); !status.ok()) return Fail(context, status);
  (void)(*daemon)->WaitEnd(context.timeout());  // the next one finds the lock free
  Print(context, {{"killed", "daemon"}, {"pid", pid}, {"signal", SIGKILL}},
        fmt::format("unreftd (pid {}): sent SIGKILL\n", pid));
  return kExitOk;
}

// The trainers of the node, as far as its daemon knows them.
std::vector<ProcessHandle> TrainersOf(const Context& context) {
  std::vector<ProcessHandle> trainers;
  auto status = AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  if (!status.ok()) return trainers;
  for (const nlohmann::json& entry : status->value("ranks", nlohmann::json::array())) {
    absl::StatusOr<ProcessHandle> process = OpenTrainer(context.place, entry.value("pid", 0));
    if (process.ok()) trainers.push_back(*std::move(process));
  }
  return trainers;
}

// Its trainers die last: the launcher then finds the slot empty, not half so.
absl::StatusOr<nlohmann::json> DestroyNode(const Context& context) {
  const Place& place = context.place;
  if (absl::Status status = CheckNoOtherDaemon(place); !status.ok()) return status;
  const std::vector<ProcessHandle> trainers = TrainersOf(context);
  absl::StatusOr<StopResult> stopped =
      KillServers(place, FindSupervisor, FindDaemon, context.timeout());
  if (!stopped.ok()) return stopped.status();
  absl::StatusOr<std::vector<SegmentInfo>> memory = RemoveMemory(place);
  if (!memory.ok()) return memory.status();
  if (absl::Status status = RemoveRunFiles(place); !status.ok()) return status;
  nlohmann::json document{{"killed", "node"},
                          {"node", place.node},
                          {"pid", nullptr},
                          {"trainers", nlohmann::json::array()},
                          {"segments_removed", memory->size()},
                          {"bytes_removed", TotalBytes(*memory)}};
  if (stopped->daemon) document["pid"] = *stopped->daemon;
  for (const ProcessHandle& trainer : trainers) {
    if (trainer.Signal(SIGKILL).ok()) document["trainers"].push_back(trainer.pid());
  }
  return document;
}

// That the run directory is the node's which was named, and that there is something of it.
absl::Status CheckIsHere(const Context& context) {
  if (context.cluster) return absl::OkStatus();
  const Place& place = context.place;
  auto status = AskDaemon(place, "status", nlohmann::json::object(), context.timeout());
  if (status.ok() && status->value("node", place.node) != place.node) {
    return absl::InvalidArgumentError(
        fmt::format("kill-node: the unreftd of {} is of node {}, not of {}: name that node, or "
                    "another --run-dir",
                    place.run_dir, status->value("node", uint64_t{0}), place.Name()));
  }
  absl::StatusOr<std::vector<SegmentInfo>> memory = ListMemory(place);
  if (!memory.ok()) return memory.status();
  FoundProcess daemon = FindDaemon(place);
  const bool is_there = !daemon.ok() || daemon->has_value();  // in doubt it is
  if (is_there || !memory->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("kill-node: {} has neither an unreftd in {} nor memory on this machine",
                  place.Name(), place.run_dir));
}

int KillNode(const Context& context, bool force) {
  if (!context.node_given) {
    return Fail(context, absl::InvalidArgumentError(fmt::format(
                             "kill-node: which of the nodes of job {} on this machine? Name it by "
                             "--node I",
                             context.place.job)));
  }
  if (absl::Status status = CheckIsHere(context); !status.ok()) return Fail(context, status);
  const absl::Status allowed =
      CheckAllowed(context.place, force,
                   "kill it and its trainers and remove its memory: what it holds of the state is "
                   "gone, and its group bears one loss less");
  if (!allowed.ok()) return Fail(context, allowed);
  auto document = DestroyNode(context);
  if (!document.ok()) return Fail(context, document.status());
  Print(context, *document,
        fmt::format("{} is destroyed: SIGKILL to unreftd and {}; {} removed\n",
                    context.place.Name(), Count((*document)["trainers"].size(), "trainer"),
                    Count((*document)["segments_removed"], "segment")));
  return kExitOk;
}

int KillMeta(const Context& context) {
  if (!context.cluster) {
    return Fail(context, absl::UnavailableError(fmt::format(
                             "job {} has no meta store on this machine", context.place.job)));
  }
  FoundProcess meta = FindMeta(context.cluster->place);
  if (!meta.ok()) return Fail(context, meta.status());
  if (!meta->has_value()) {
    return Fail(context, absl::UnavailableError(
                             fmt::format("job {}: its meta store is not up", context.place.job)));
  }
  const pid_t pid = (*meta)->pid();
  if (absl::Status status = (*meta)->Signal(SIGKILL); !status.ok()) return Fail(context, status);
  (void)(*meta)->WaitEnd(context.timeout());
  Print(context, {{"killed", "meta"}, {"pid", pid}, {"signal", SIGKILL}},
        fmt::format("meta store (pid {}): sent SIGKILL\n", pid));
  return kExitOk;
}

nlohmann::json Document(const FlipResult& flip, const FlipOptions& options) {
  return {{"segment", flip.segment},
          {"slot", flip.slot.value},
          {"rank", flip.rank.value},
          {"timeline", NumberOf(flip.version.timeline)},
          {"step", flip.version.step.value},
          {"region", options.region},
          {"offset", flip.region_offset},
          {"segment_offset", flip.segment_offset},
          {"bit", options.bit},
          {"before", flip.before},
          {"after", flip.after}};
}

int Flip(const Context& context, const FlipOptions& options) {
  const absl::Status allowed = CheckAllowed(
      context.place, options.force, "make a version that is kept wrong: it is not restored then");
  if (!allowed.ok()) return Fail(context, allowed);
  FlipRequest request{.prefix = SegmentPrefix(context.place.job, context.place.node),
                      .region = kRegions.at(options.region),
                      .offset = options.offset,
                      .bit = options.bit};
  if (options.rank) request.rank = Rank{*options.rank};
  if (options.slot) request.slot = SlotId{*options.slot};
  ShmSegmentStore store;
  absl::StatusOr<FlipResult> flip = FlipBit(store, request);
  if (!flip.ok()) return Fail(context, flip.status());
  Print(context, Document(*flip, options),
        fmt::format("slot {} of rank {}, version {}: bit {} of {} byte {} flipped, {:02x} -> "
                    "{:02x} ({} at {})\n",
                    flip->slot, flip->rank, flip->version, options.bit, options.region,
                    flip->region_offset, flip->before, flip->after, flip->segment,
                    flip->segment_offset));
  return kExitOk;
}

void AddForce(CLI::App* command, bool& force) {
  command->add_flag("--force", force, "also where unreftd was started without --allow-inject");
}

void AddKillTrainer(CLI::App& inject, Context& context) {
  auto rank = std::make_shared<std::optional<uint64_t>>();
  CLI::App* command = AddCommand(inject, "kill-trainer", "SIGKILL one training process");
  command->add_option("--rank", *rank, "which one; by default the first that is connected");
  auto force = std::make_shared<bool>(false);
  AddForce(command, *force);
  OnChosenForAll(command, context,
                 [&context, rank, force] { return KillTrainer(context, *rank, *force); });
}

void AddKillNode(CLI::App& inject, Context& context) {
  CLI::App* command = AddCommand(
      inject, "kill-node", "destroy a node: SIGKILL unreftd and its trainers, remove its memory");
  command->footer("`unreft up --node I` puts a new node into the slot.");
  auto force = std::make_shared<bool>(false);
  AddForce(command, *force);
  OnChosenForAll(command, context, [&context, force] { return KillNode(context, *force); });
}

void AddKillMeta(CLI::App& inject, Context& context) {
  CLI::App* command = AddCommand(inject, "kill-meta", "SIGKILL the meta store");
  OnChosenForAll(command, context, [&context] { return KillMeta(context); });
}

void AddKillDaemon(CLI::App& inject, Context& context) {
  CLI::App* command = AddCommand(inject, "kill-daemon", "SIGKILL unreftd");
  auto force = std::make_shared<bool>(false);
  AddForce(command, *force);
  OnChosen(command, context, [&context, force] { return KillDaemon(context, *force); });
}

void AddFlipBit(CLI::App& inject, Context& context) {
  auto options = std::make_shared<FlipOptions>();
  CLI::App* command = AddCommand(inject, "flip-bit",
                                 "flip one bit of the newest sealed slot, in the memory itself");
  command->add_option("--rank", options->rank, "only slots of this rank");
  command->add_option("--slot", options->slot, "only this slot");
  command->add_option("--region", options->region, "where: data, extras, manifest or header")
      ->check(CLI::IsMember(kRegions))
      ->capture_default_str();
  command->add_option("--offset", options->offset,
                      "the byte within the region; by default its middle");
  command->add_option("--bit", options->bit, "0 to 7")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  AddForce(command, options->force);
  OnChosen(command, context, [&context, options] { return Flip(context, *options); });
}

}  // namespace

void AddInject(CLI::App& app, Context& context) {
  CLI::App* inject = AddCommand(app, "inject", "cause a fault on purpose");
  inject->require_subcommand(1);
  AddKillTrainer(*inject, context);
  AddKillDaemon(*inject, context);
  AddKillNode(*inject, context);
  AddKillMeta(*inject, context);
  AddFlipBit(*inject, context);
}

}  // namespace unreft::cli
