#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "tools/cli/admin_client.h"
#include "tools/cli/cluster.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/launcher.h"
#include "tools/cli/memory_check.h"
#include "tools/cli/placement.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kPollInterval(50);
// A spare takes a slot as soon as the node is declared lost, seconds after its last sign of life.
constexpr Milliseconds kTakeoverTimeout(60000);

struct RunOptions {
  uint32_t ranks = 1;
  uint32_t max_restarts = 10;
  uint64_t grace_ms = 500;
  uint64_t memory_wait_ms = 60000;
  std::optional<uint64_t> first_attempt;
  bool up = false;
  bool prefix_output = false;
  bool replace_nodes = false;
};

// One more than any attempt the daemon has seen, so that a new launcher continues the count.
uint64_t NextAttempt(const nlohmann::json& status) {
  uint64_t next = 0;
  for (const nlohmann::json& rank : status.value("ranks", nlohmann::json::array())) {
    next = std::max(next, rank.value("attempt", uint64_t{0}) + 1);
  }
  return next;
}

absl::StatusOr<nlohmann::json> ReachDaemon(const Context& context, bool up) {
  if (!up) {
    return AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  }
  absl::StatusOr<StartResult> started = StartDaemon(context.place, {.supervise = true});
  if (!started.ok()) return started.status();
  return std::move(started->status);
}

void Tell(const Context& context, const nlohmann::json& event, const std::string& text) {
  if (!context.json) return Say(text);
  const std::string line = event.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void Warn(const Context& context, const std::string& text) {
  Tell(context, {{"event", "warning"}, {"text", text}}, text);
}

// --- several nodes on this machine ---

void ReachNodes(const Context& context, const Cluster& cluster, uint64_t& next) {
  for (const Place& place : NodePlaces(cluster, context.timeout())) {
    auto status = AskDaemon(place, "status", nlohmann::json::object(), context.timeout());
    if (status.ok()) {
      next = std::max(next, NextAttempt(*status));
    } else {
      Warn(context, std::string(status.status().message()));
    }
  }
}

// Each with the daemon that is its node now.
void PlaceRanks(const Cluster& cluster, const std::vector<uint64_t>& places,
                RankGroupOptions& group) {
  group.rank_environment.clear();
  for (uint32_t rank = 0; rank < group.ranks; ++rank) {
    const uint64_t node = cluster.NodeOf(rank, group.ranks);
    group.rank_environment.push_back(TrainerEnvironment(cluster.NodePlace(places[node])));
  }
}

// Whether a daemon is there, or a supervisor that looks after it.
bool IsServed(const Place& place) {
  const FoundProcess daemon = FindDaemon(place);
  const FoundProcess supervisor = FindSupervisor(place);
  return !daemon.ok() || daemon->has_value() || !supervisor.ok() || supervisor->has_value();
}

absl::Status ReplaceNode(const Context& context, const Cluster& cluster, uint64_t node) {
  absl::StatusOr<StartResult> started = StartNode(cluster, node);
  if (!started.ok()) return started.status();
  Tell(context,
       {{"event", "node-replaced"}, {"node", node}, {"pid", started->status.value("pid", 0)}},
       fmt::format("node {}: a new unreftd (pid {}) takes its slot", node,
                   started->status.value("pid", 0)));
  return absl::OkStatus();
}

// By node, its place for the next attempt. A slot without a daemon is a spare's as long as one
// waits; then, if asked to, it gets a new one.
absl::StatusOr<std::vector<uint64_t>> SettleNodes(const Context& context, const Cluster& cluster,
                                                  bool replace) {
  const Deadline deadline(kTakeoverTimeout);
  Placement placement;
  while (true) {
    nlohmann::json answer;
    if (cluster.spares > 0) {
      if (auto asked = AskCluster(cluster, context.timeout()); asked.ok()) answer = *asked;
    }
    placement = FindPlacement(cluster, answer,
                              [&](uint64_t place) { return IsServed(cluster.NodePlace(place)); });
    if (!placement.unsettled) break;
    if (deadline.passed()) {
      Warn(context, fmt::format("no spare has taken the slot of a lost node within {} ms",
                                kTakeoverTimeout.count()));
      break;
    }
    poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
  }
  for (const uint64_t node : placement.vacant) {
    if (!replace || IsServed(cluster.NodePlace(node))) continue;
    if (absl::Status status = ReplaceNode(context, cluster, node); !status.ok()) return status;
    placement.places[node] = node;
  }
  return placement.places;
}

LaunchOptions Prepare(const Context& context, const RunOptions& options, uint64_t next_attempt) {
  return {.group = {.command = context.after_dashes,
                    .ranks = options.ranks,
                    .grace = Milliseconds(options.grace_ms),
                    .prefix_output = options.prefix_output},
          .max_restarts = options.max_restarts,
          .first_attempt = options.first_attempt.value_or(next_attempt),
          .json = context.json};
}

int LaunchIt(const Context& context, const LaunchOptions& launch) {
  absl::StatusOr<int> code = Launch(launch);
  if (code.ok()) return *code;
  const int failed = Fail(context, code.status());
  return absl::IsNotFound(code.status()) ? kExitCannotRun : failed;
}

int RunOnNodes(const Context& context, const Cluster& cluster, const RunOptions& options) {
  if (options.up) {
    return Fail(context, absl::InvalidArgumentError(fmt::format(
                             "run --up is for one node; the {} of job {}: unreft up, then run",
                             cluster.nodes, cluster.place.job)));
  }
  uint64_t next = 0;
  ReachNodes(context, cluster, next);
  LaunchOptions launch = Prepare(context, options, next);
  const auto settle = [&](bool replace) -> absl::Status {
    const auto places = SettleNodes(context, cluster, replace);
    if (!places.ok()) return places.status();
    PlaceRanks(cluster, *places, launch.group);
    std::vector<Place> nodes;
    for (const uint64_t place : *places) nodes.push_back(cluster.NodePlace(place));
    return WaitForMemory(
        nodes, context.timeout(), Milliseconds(options.memory_wait_ms),
        [&](const nlohmann::json& event, const std::string& text) { Tell(context, event, text); });
  };
  if (absl::Status status = settle(false); !status.ok()) return Fail(context, status);
  launch.before_restart = [&] { return settle(options.replace_nodes); };
  return LaunchIt(context, launch);
}

int Run(const Context& context, const RunOptions& options) {
  if (context.after_dashes.empty()) {
    return Fail(context, absl::InvalidArgumentError(
                             "run: no command; write it after --: unreft run -- python train.py"));
  }
  const Cluster* cluster = context.all_nodes();
  if (cluster != nullptr) return RunOnNodes(context, *cluster, options);
  absl::StatusOr<nlohmann::json> status = ReachDaemon(context, options.up);
  if (!status.ok() && options.up) return Fail(context, status.status());
  if (!status.ok()) {
    Warn(context, fmt::format("{}; unless `unreft up` starts one, training is not protected",
                              std::string(status.status().message())));
  }
  const uint64_t daemon_next = status.ok() ? NextAttempt(*status) : 0;
  LaunchOptions launch = Prepare(context, options, daemon_next);
  launch.group.environment = TrainerEnvironment(context.place);
  return LaunchIt(context, launch);
}

constexpr char kFooter[] =
    R"text(Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR=127.0.0.1,
MASTER_PORT (a fresh one per attempt), UNREFT_ATTEMPT, UNREFT_SOCKET, UNREFT_JOB, and
OMP_NUM_THREADS=1 unless it is set. When a rank exits with another code than 0 or is
killed, the others are stopped and the next attempt starts. After `up --nodes N`, rank r of
R is of node r * N / R, and has its UNREFT_SOCKET, or that of the spare which took its slot.

Exit code: 0 when all ranks of an attempt exited with 0; the failed rank's code, or 128
plus its signal, when the restarts are used up; 130 after Ctrl-C; 127 when the command
cannot be run. The daemon stays up: unreft down. With --up its options come from the
environment (UNREFT_SLOTS_PER_RANK=2 ...), or start it before: unreft up -- OPTIONS.

Under another launcher: eval "$(unreft up --print-env)", then
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 4 --max-restarts 10 train.py
whose RANK, WORLD_SIZE and TORCHELASTIC_RESTART_COUNT the client understands.)text";

}  // namespace

void AddRun(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = AddCommand(app, "run", "launch a training job: unreft run -- CMD ...");
  command->add_option("--ranks", options->ranks, "training processes to start")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--max-restarts", options->max_restarts, "attempts after the first")
      ->capture_default_str();
  command
      ->add_option("--grace-ms", options->grace_ms,
                   "from SIGTERM to SIGKILL, for the ranks that did not fail")
      ->capture_default_str();
  command->add_option("--first-attempt", options->first_attempt,
                      "number of the first attempt; by default one more than unreftd has seen");
  command->add_flag("--up", options->up, "first do what `unreft up --supervise` does");
  command->add_flag("--prefix-output", options->prefix_output, "begin each line with [RANK]");
  command->add_flag("--replace-nodes", options->replace_nodes,
                    "before an attempt, start a new unreftd in the slot of a destroyed node, "
                    "unless a spare takes it");
  command
      ->add_option("--memory-wait-ms", options->memory_wait_ms,
                   "how long an attempt waits for a node that has too little memory for it")
      ->capture_default_str();
  command->footer(kFooter);
  OnChosenForAll(command, context, [&context, options] { return Run(context, *options); });
}

}  // namespace unreft::cli
