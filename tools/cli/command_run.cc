#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tools/cli/admin_client.h"
#include "tools/cli/cluster.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/dry_run.h"
#include "tools/cli/launcher.h"
#include "tools/cli/memory_check.h"
#include "tools/cli/node_range.h"
#include "tools/cli/seats.h"
#include "tools/cli/wish_watch.h"

namespace unreft::cli {
namespace {

// Of a question that is asked while ranks run, whose ends are seen in between.
constexpr Milliseconds kShortTimeout(300);

struct RunOptions {
  uint32_t ranks = 1;
  uint32_t max_restarts = 10;
  uint64_t grace_ms = 500;
  uint64_t memory_wait_ms = 60000;
  std::optional<uint64_t> first_attempt;
  bool up = false;
  bool prefix_output = false;
  bool replace_nodes = false;
  NodeRange nodes;
  uint64_t ranks_multiple = 1;
  uint64_t shrink_after_s = 0;
  std::string dry_run;  // the file to write
};

// One more than that of any rank that the daemon serves, so that a new launcher goes on from there.
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
void PlaceRanks(const Cluster& cluster, const Seats& seats, RankGroupOptions& group) {
  group.rank_environment.clear();
  for (uint32_t rank = 0; rank < group.ranks; ++rank) {
    const uint64_t place = seats.places[rank * seats.places.size() / group.ranks];
    group.rank_environment.push_back(TrainerEnvironment(cluster.NodePlace(place)));
  }
}

Seats AllSeats(const Cluster& cluster) {
  Seats seats;
  for (uint64_t node = 0; node < cluster.nodes; ++node) {
    seats.nodes.push_back(node);
    seats.places.push_back(node);
  }
  return seats;
}

// Of the first daemon that answers. Of those that hang two are asked at most: ranks run meanwhile.
absl::StatusOr<nlohmann::json> AskResize(const Cluster& cluster, const Seats& seats) {
  absl::StatusOr<nlohmann::json> answer = absl::UnavailableError("no node is there");
  int hanging = 0;
  for (const uint64_t place : seats.places) {
    answer = AskDaemon(cluster.NodePlace(place), "resize", nlohmann::json::object(), kShortTimeout);
    if (absl::IsDeadlineExceeded(answer.status())) ++hanging;
    if (answer.ok() || hanging == 2) break;
  }
  return answer;
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

// On all nodes, or with a range on those that have a daemon, if these are enough: none is needed,
// none is waited for.
int DryRunOnNodes(const Context& context, const Cluster& cluster, const RunOptions& options) {
  const std::vector<uint64_t> vacant = PlacementNow(cluster, context.timeout()).vacant;
  std::vector<uint64_t> nodes;
  const bool may_shrink =
      options.nodes.is_given() && cluster.nodes - vacant.size() >= options.nodes.min;
  for (uint64_t node = 0; node < cluster.nodes; ++node) {
    const bool is_vacant = std::ranges::find(vacant, node) != vacant.end();
    if (!is_vacant || !may_shrink) nodes.push_back(node);
  }
  const auto ranks = RanksOn(nodes.size(), cluster.nodes, options.ranks, options.ranks_multiple);
  if (!ranks.ok()) return Fail(context, ranks.status());
  LaunchOptions launch = Prepare(context, options, 0);
  launch.group.ranks = *ranks;
  launch.group.environment = TrainerEnvironment(cluster.place);
  std::vector<uint64_t> of_ranks;
  for (uint64_t rank = 0; rank < *ranks; ++rank) {
    of_ranks.push_back(nodes[rank * nodes.size() / *ranks]);
  }
  return RunDry(context, launch, of_ranks, options.dry_run);
}

int DryRun(const Context& context, const RunOptions& options) {
  if (options.up) {
    return Fail(context, absl::InvalidArgumentError(
                             "run --dry-run needs no daemon, and --up starts one: leave one out"));
  }
  if (const Cluster* cluster = context.all_nodes()) {
    const absl::Status status =
        CheckRange(options.nodes, cluster->nodes, options.ranks, options.ranks_multiple);
    return status.ok() ? DryRunOnNodes(context, *cluster, options) : Fail(context, status);
  }
  LaunchOptions launch = Prepare(context, options, 0);
  launch.group.environment = TrainerEnvironment(context.place);
  return RunDry(context, launch, std::vector<uint64_t>(options.ranks, context.place.node),
                options.dry_run);
}

int RunOnNodes(const Context& context, const Cluster& cluster, const RunOptions& options) {
  if (options.up) {
    return Fail(context, absl::InvalidArgumentError(fmt::format(
                             "run --up is for one node; the {} of job {}: unreft up, then run",
                             cluster.nodes, cluster.place.job)));
  }
  if (absl::Status status =
          CheckRange(options.nodes, cluster.nodes, options.ranks, options.ranks_multiple);
      !status.ok()) {
    return Fail(context, status);
  }
  uint64_t next = 0;
  ReachNodes(context, cluster, next);
  LaunchOptions launch = Prepare(context, options, next);
  const auto tell = [&](const nlohmann::json& event, const std::string& text) {
    Tell(context, event, text);
  };
  const RunShape shape{.nodes = cluster.nodes, .range = options.nodes};
  Seats seats = AllSeats(cluster);
  WishWatch wishes(
      {.shape = shape,
       .ask = [&] { return AskResize(cluster, seats); },
       .there = [&] { return NodesThere(cluster, PlacementNow(cluster, kShortTimeout)); },
       .tell = tell});
  SeatFinder finder(cluster,
                    {.shape = shape,
                     .timeout = context.timeout(),
                     .shrink_after = Milliseconds(options.shrink_after_s * 1000),
                     .tell = tell},
                    wishes);
  const auto settle = [&](bool replace, int signals) -> absl::Status {
    absl::StatusOr<Seats> found = finder.Find(replace, signals);
    if (!found.ok()) return found.status();
    const auto ranks =
        RanksOn(found->nodes.size(), cluster.nodes, options.ranks, options.ranks_multiple);
    if (!ranks.ok()) return ranks.status();
    if (launch.group.ranks != *ranks || seats.nodes != found->nodes) {
      Tell(context, {{"event", "resized"}, {"nodes", found->nodes}, {"ranks", *ranks}},
           fmt::format("{} ranks on nodes {}", *ranks, fmt::join(found->nodes, ", ")));
    }
    seats = *std::move(found);
    launch.group.ranks = *ranks;
    PlaceRanks(cluster, seats, launch.group);
    wishes.BeginAttempt({seats.nodes.begin(), seats.nodes.end()});
    std::vector<Place> nodes;
    for (const uint64_t place : seats.places) nodes.push_back(cluster.NodePlace(place));
    return WaitForMemory(nodes, context.timeout(), Milliseconds(options.memory_wait_ms), tell);
  };
  if (absl::Status status = settle(false, -1); !status.ok()) return Fail(context, status);
  launch.before_restart = [&](int signals) { return settle(options.replace_nodes, signals); };
  launch.group.why_to_end = [&] { return wishes.WhyToEnd(); };
  return LaunchIt(context, launch);
}

int Run(const Context& context, const RunOptions& options) {
  if (context.after_dashes.empty()) {
    return Fail(context, absl::InvalidArgumentError(
                             "run: no command; write it after --: unreft run -- python train.py"));
  }
  if (!options.dry_run.empty()) return DryRun(context, options);
  const Cluster* cluster = context.all_nodes();
  if (cluster != nullptr) return RunOnNodes(context, *cluster, options);
  if (options.nodes.is_given()) {
    return Fail(context, absl::InvalidArgumentError(fmt::format(
                             "run --nodes is for a job of several nodes, job {} has one: unreft "
                             "up --nodes N",
                             context.place.job)));
  }
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
MASTER_PORT (another one per attempt, and kept for it: SO_REUSEADDR binds it, as torch does),
UNREFT_ATTEMPT, UNREFT_SOCKET, UNREFT_JOB, and OMP_NUM_THREADS=1 unless it is set. When a rank
exits with another code than 0 or is killed, the others are stopped and the next attempt
starts. After `up --nodes N`, rank r of R is of node r * N / R, and has its UNREFT_SOCKET, or
that of the spare which took its slot.
With --nodes MIN:MAX a node without a daemon is left out, once MIN are there: an attempt on n
of N nodes has --ranks * n / N ranks, rounded down to --ranks-multiple, and restores what the
others saved. Its protection groups are of these n nodes, until a restart has all again. It
also does what `unreft resize` orders: after the next commit an attempt on other nodes begins,
which counts as no restart.

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
                      "number of the first attempt; by default one more than that of any rank that "
                      "unreftd serves, and 0 where it serves none");
  command->add_flag("--up", options->up, "first do what `unreft up --supervise` does");
  command->add_flag("--prefix-output", options->prefix_output, "begin each line with [RANK]");
  command->add_flag("--replace-nodes", options->replace_nodes,
                    "before an attempt, start a new unreftd in the slot of a destroyed node, "
                    "unless a spare takes it");
  command
      ->add_option_function<std::string>(
          "--nodes", [options](const std::string& text) { options->nodes = ParseRange(text); },
          "MIN:MAX: an attempt leaves nodes out that have no daemon, if MIN have one; else it "
          "waits")
      ->check(IsRange);
  command
      ->add_option("--ranks-multiple", options->ranks_multiple,
                   "with --nodes: what the number of ranks is a multiple of, as TP x PP")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--shrink-after", options->shrink_after_s,
                   "with --nodes: seconds in which an attempt waits for all of them")
      ->check(CLI::Range(uint64_t{0}, uint64_t{UINT32_MAX}))
      ->capture_default_str();
  command
      ->add_option("--memory-wait-ms", options->memory_wait_ms,
                   "how long an attempt waits for a node that has too little memory for it")
      ->capture_default_str();
  command->add_option("--dry-run", options->dry_run,
                      "FILE: no training. The ranks attach to nothing, write to FILE what they "
                      "would restore, for `unreft plan --layout FILE`, and end");
  command->footer(kFooter);
  OnChosenForAll(command, context, [&context, options] { return Run(context, *options); });
}

}  // namespace unreft::cli
