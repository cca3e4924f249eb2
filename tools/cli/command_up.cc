#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/private_directory.h"
#include "base/shm_segment_store.h"
#include "tools/cli/cluster.h"
#include "tools/cli/commands.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/meta_control.h"
#include "tools/cli/node_range.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

constexpr uint64_t kNodesMax = 64;

struct UpOptions {
  StartRequest start;
  NodeRange nodes;
  std::optional<uint64_t> data_chunks;
  std::optional<uint64_t> parity_chunks;
  std::optional<uint64_t> spares;
  std::string tls_dir;
  bool insecure = false;
  uint64_t wait_ms = 30000;
  bool print_env = false;
};

std::string Exports(const Place& place) {
  std::string text;
  for (const auto& [name, value] : TrainerEnvironment(place)) {
    text += fmt::format("export {}={}\n", name, ShellQuote(value));
  }
  return text;
}

nlohmann::json MemoryFacts(const Place& place) {
  nlohmann::json facts = nlohmann::json::object();
  if (auto capacity = ShmSegmentStore().Capacity(); capacity.ok()) {
    facts["shm_free_bytes"] = capacity->segments_free;
    facts["ram_available_bytes"] = capacity->ram_available;
    facts["memlock_limit_bytes"] = capacity->memlock_limit;
  }
  if (auto segments = ListMemory(place); segments.ok()) {
    facts["segments"] = segments->size();
    facts["segment_bytes"] = TotalBytes(*segments);
  }
  return facts;
}

nlohmann::json Document(const Place& place, const StartResult& result) {
  nlohmann::json environment = nlohmann::json::object();
  for (const auto& [name, value] : TrainerEnvironment(place)) environment[name] = value;
  nlohmann::json document{{"job", place.job},
                          {"node", place.node},
                          {"run_dir", place.run_dir},
                          {"socket", place.socket()},
                          {"log", place.log()},
                          {"pid", result.status.value("pid", 0)},
                          {"supervisor_pid", nullptr},
                          {"already_up", result.already_up},
                          {"memory", MemoryFacts(place)},
                          {"environment", environment}};
  if (auto supervisor = FindSupervisor(place); supervisor.ok() && supervisor->has_value()) {
    document["supervisor_pid"] = (*supervisor)->pid();
  }
  return document;
}

std::string Limit(const nlohmann::json& facts, const char* key) {
  const uint64_t bytes = facts.value(key, UINT64_MAX);
  return bytes == UINT64_MAX ? "no limit" : HumanBytes(bytes);
}

std::string Text(const Place& place, const nlohmann::json& document) {
  const nlohmann::json& memory = document["memory"];
  std::string text =
      fmt::format("{}: unreftd is {} (pid {}", place.Name(),
                  document["already_up"].get<bool>() ? "already up" : "up", Cell(document, "pid"));
  text += document["supervisor_pid"].is_null()
              ? ")\n"
              : fmt::format(", supervised by {})\n", Cell(document, "supervisor_pid"));
  text += fmt::format("  socket  {}\n  log     {}\n", place.socket(), place.log());
  text += fmt::format(
      "  memory  {} held in {}; free: {} in /dev/shm, {} of RAM; may be locked: {}\n",
      BytesCell(memory, "segment_bytes"), Count(memory.value("segments", uint64_t{0}), "segment"),
      Limit(memory, "shm_free_bytes"), Limit(memory, "ram_available_bytes"),
      Limit(memory, "memlock_limit_bytes"));
  return text + "Training processes find it by:\n" + Exports(place);
}

// --- several nodes on this machine ---

// The groups asked for, or by default those that stand two losses as soon as there are four nodes
// to begin with.
absl::StatusOr<Cluster> NewCluster(const Context& context, const UpOptions& options) {
  Cluster cluster{.place = context.place,
                  .nodes = options.nodes.max,
                  .nodes_min = options.nodes.min,
                  .spares = options.spares.value_or(0),
                  .tls_dir = options.tls_dir,
                  .insecure = options.insecure};
  const uint64_t least = cluster.nodes_min;
  cluster.parity_chunks = options.parity_chunks.value_or(least >= 4 ? 2 : least >= 2 ? 1 : 0);
  const uint64_t data = std::min<uint64_t>(2, least - std::min(least - 1, cluster.parity_chunks));
  cluster.data_chunks = options.data_chunks.value_or(data);
  const uint64_t chunks = cluster.data_chunks + cluster.parity_chunks;
  if (chunks > cluster.nodes) {
    return absl::InvalidArgumentError(
        fmt::format("{} data chunks and {} parity chunks need {} nodes, found {}",
                    cluster.data_chunks, cluster.parity_chunks, chunks, cluster.nodes));
  }
  Place longest = cluster.NodePlace(cluster.places() - 1);  // of all sockets' paths
  if (absl::Status status = Resolve(longest); !status.ok()) return status;
  absl::StatusOr<std::string> address = MetaSocketAddress(cluster.place);
  if (cluster.insecure || !cluster.tls_dir.empty()) address = ChooseMetaAddress();
  if (!address.ok()) return address.status();
  cluster.meta_address = *std::move(address);
  return cluster;
}

// What is there goes on; it is not made into something else.
absl::Status CheckSame(const Cluster& cluster, const UpOptions& options) {
  const auto same = [](const std::optional<uint64_t>& asked, uint64_t found) {
    return !asked || *asked == found;
  };
  const bool same_least =
      options.nodes.min == options.nodes.max || options.nodes.min == cluster.nodes_min;
  const bool same_nodes =
      !options.nodes.is_given() || (same_least && options.nodes.max == cluster.nodes);
  const bool same_tls = options.tls_dir.empty() || options.tls_dir == cluster.tls_dir;
  if (same_tls && options.insecure <= cluster.insecure && same_nodes &&
      same(options.data_chunks, cluster.data_chunks) &&
      same(options.parity_chunks, cluster.parity_chunks) && same(options.spares, cluster.spares)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      fmt::format("job {} has {} nodes with {} + {} chunks and {} in {}; first: unreft down",
                  cluster.place.job, cluster.Range(), cluster.data_chunks, cluster.parity_chunks,
                  cluster.insecure          ? "neither TLS nor socket files (--insecure)"
                  : cluster.tls_dir.empty() ? "socket files"
                                            : "TLS by " + cluster.tls_dir,
                  cluster.place.run_dir));
}

// Daemons that run keep theirs, and who is started beside them has to have the same.
absl::Status CheckSameWords(const Cluster& cluster, const std::vector<std::string>& words) {
  if (words == cluster.start.daemon_words) return absl::OkStatus();
  for (uint64_t node = 0; node < cluster.places(); ++node) {
    FoundProcess daemon = FindDaemon(cluster.NodePlace(node));
    if (!daemon.ok()) return daemon.status();
    if (!daemon->has_value()) continue;
    return absl::FailedPreconditionError(fmt::format(
        "job {}: its daemons were started with '{}' after '--', found '{}', and node {} runs: end "
        "them first (unreft down --keep-memory keeps what they hold)",
        cluster.place.job, absl::StrJoin(cluster.start.daemon_words, " "),
        absl::StrJoin(words, " "), node));
  }
  return absl::OkStatus();
}

nlohmann::json ProcessJson(FoundProcess found) {
  if (!found.ok() || !found->has_value()) return nullptr;
  return (*found)->pid();
}

// For the shell, and for whoever finds a rank's node by other means than `unreft run`.
std::vector<std::pair<std::string, std::string>> CommonEnvironment(const Cluster& cluster) {
  return {{"UNREFT_JOB", cluster.place.job}, {"UNREFT_RUN_DIR", cluster.place.run_dir}};
}

std::string CommonExports(const Cluster& cluster, Milliseconds timeout) {
  std::string text;
  for (const auto& [name, value] : CommonEnvironment(cluster)) {
    text += fmt::format("export {}={}\n", name, ShellQuote(value));
  }
  uint64_t node = 0;
  for (const Place& place : NodePlaces(cluster, timeout)) {
    text += fmt::format("# ranks of node {}: export UNREFT_SOCKET={}\n", node++,
                        ShellQuote(place.socket()));
  }
  return text;
}

// The first so many nodes, and the spares.
absl::StatusOr<nlohmann::json> StartAll(const Cluster& cluster, uint64_t nodes,
                                        Milliseconds timeout) {
  if (absl::Status status = MakePrivateDirectory(cluster.place.run_dir); !status.ok())
    return status;
  if (absl::Status status = WriteCluster(cluster); !status.ok()) return status;
  absl::StatusOr<bool> meta_was_up =
      StartMeta(cluster.place, cluster.meta_address, cluster.MetaRequest());
  if (!meta_was_up.ok()) return meta_was_up.status();
  nlohmann::json document{
      {"job", cluster.place.job},           {"run_dir", cluster.place.run_dir},
      {"data_chunks", cluster.data_chunks}, {"parity_chunks", cluster.parity_chunks},
      {"nodes", nlohmann::json::array()},   {"environment", CommonEnvironment(cluster)},
      {"insecure", cluster.insecure}};
  document["meta"] = {{"address", cluster.meta_address},
                      {"log", MetaLog(cluster.place)},
                      {"already_up", *meta_was_up},
                      {"pid", ProcessJson(FindMeta(cluster.place))},
                      {"supervisor_pid", ProcessJson(FindMetaSupervisor(cluster.place))}};
  // A node whose slot a spare has taken is not started beside it.
  const auto now = AskCluster(cluster, timeout);
  for (uint64_t node = 0; node < cluster.places(); ++node) {
    if (node >= nodes && node < cluster.nodes) continue;
    if (now.ok() && node < cluster.nodes && PlaceOf(*now, node) != node) continue;
    absl::StatusOr<StartResult> result = StartNode(cluster, node);
    if (!result.ok()) return result.status();
    document["nodes"].push_back(Document(cluster.NodePlace(node), *result));
  }
  auto joined = WaitJoined(cluster, nodes, timeout);
  if (!joined.ok()) return joined.status();
  document["leader"] = joined->value("leader", nlohmann::json());
  document["view"] = joined->value("view", nlohmann::json());
  return document;
}

std::string ClusterText(const Cluster& cluster, const nlohmann::json& document,
                        Milliseconds timeout) {
  const nlohmann::json& meta = document["meta"];
  std::string text = fmt::format("job {}: {} nodes, groups of {} + {} chunks, node {} leads\n",
                                 cluster.place.job, cluster.Range(), cluster.data_chunks,
                                 cluster.parity_chunks, Cell(document, "leader"));
  text += fmt::format("  meta    pid {}, at {}, log {}\n", Cell(meta, "pid"), Cell(meta, "address"),
                      Cell(meta, "log"));
  for (const nlohmann::json& node : document["nodes"]) {
    const bool is_spare = node["node"].get<uint64_t>() >= cluster.nodes;
    text += fmt::format("  {} {}  pid {}{}, log {}\n", is_spare ? "spare" : "node",
                        Cell(node, "node"), Cell(node, "pid"),
                        node["already_up"].get<bool>() ? " (was up)" : "", Cell(node, "log"));
  }
  return text + "`unreft run` gives each rank its node's socket; otherwise:\n" +
         CommonExports(cluster, timeout);
}

// All nodes, as far as they are not up; of a range as many as the job begins with.
int UpAll(const Context& context, UpOptions& options) {
  absl::StatusOr<Cluster> cluster =
      context.cluster ? *context.cluster : NewCluster(context, options);
  if (!cluster.ok()) return Fail(context, cluster.status());
  if (absl::Status same = CheckSame(*cluster, options); !same.ok()) return Fail(context, same);
  if (!context.cluster || !context.after_dashes.empty()) {
    if (absl::Status same = CheckSameWords(*cluster, context.after_dashes); !same.ok()) {
      return Fail(context, same);
    }
    cluster->start.daemon_words = context.after_dashes;
  }
  if (!options.start.daemon_path.empty()) cluster->start.daemon_path = options.start.daemon_path;
  cluster->start.supervise |= options.start.supervise;
  cluster->start.timeout = options.start.timeout;
  if (cluster->insecure) {
    Say("insecure: all talk by TCP without TLS; every user of this machine can read and forge the "
        "job's state (docs/security.md)");
  }
  const bool is_range = options.nodes.min < options.nodes.max;
  auto document =
      StartAll(*cluster, is_range ? cluster->nodes_min : cluster->nodes, options.start.timeout);
  if (!document.ok()) return Fail(context, document.status());
  Print(context, *document,
        options.print_env ? CommonExports(*cluster, options.start.timeout)
                          : ClusterText(*cluster, *document, options.start.timeout));
  return kExitOk;
}

// The slot is another's, unless that is lost, too. A memory that had it before may get it back.
absl::Status CheckNotTaken(const Cluster& cluster, uint64_t node, Milliseconds timeout) {
  if (cluster.spares == 0 || node >= cluster.nodes) return absl::OkStatus();
  const auto answer = AskCluster(cluster, timeout);
  if (!answer.ok()) return absl::OkStatus();
  for (const nlohmann::json& member : answer->value("members", nlohmann::json::array())) {
    const uint64_t place = member.value("place", node);
    if (member.value("slot", UINT64_MAX) != node || place == node) continue;
    if (member.value("lost", false)) return absl::OkStatus();
    const auto memory = ListMemory(cluster.NodePlace(node));
    if (memory.ok() && !memory->empty()) {
      Say(
          fmt::format("node {}: spare {} has taken its slot. It gets it back if its trainers live "
                      "and the spare has none; unreft status says so",
                      node, place));
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        fmt::format("node {}: spare {} has taken its slot; to start that one: unreft up --node {}",
                    node, place, place));
  }
  return absl::OkStatus();
}

int Up(const Context& context, UpOptions& options) {
  options.start.timeout = Milliseconds(options.wait_ms);
  if (options.nodes.is_given() && context.node_given) {
    return Fail(context, absl::InvalidArgumentError("up: either --nodes or --node"));
  }
  if (!options.tls_dir.empty()) options.tls_dir = std::filesystem::absolute(options.tls_dir);
  if (options.insecure && !options.tls_dir.empty()) {
    return Fail(context, absl::InvalidArgumentError("up: either --tls-dir or --insecure"));
  }
  if (options.nodes.is_given() || context.all_nodes() != nullptr) return UpAll(context, options);
  if (options.insecure || !options.tls_dir.empty()) {
    return Fail(context, absl::InvalidArgumentError(
                             "up: --tls-dir and --insecure are of a job of several nodes"));
  }
  options.start.daemon_words = context.after_dashes;
  if (context.cluster) {
    const absl::Status status =
        CheckNotTaken(*context.cluster, context.place.node, options.start.timeout);
    if (!status.ok()) return Fail(context, status);
    // As it was started before: a node that was destroyed is replaced.
    const bool supervise = options.start.supervise;
    options.start = context.cluster->NodeRequest(context.place.node);
    options.start.supervise |= supervise;
    options.start.timeout = Milliseconds(options.wait_ms);
    if (!context.after_dashes.empty()) {
      return Fail(context, absl::InvalidArgumentError(
                               "up --node: a node's options are those of all: unreft up -- ..."));
    }
  }
  absl::StatusOr<StartResult> result = StartDaemon(context.place, options.start);
  if (!result.ok()) return Fail(context, result.status());
  const nlohmann::json document = Document(context.place, *result);
  if (result->already_up && options.start.supervise && document["supervisor_pid"].is_null()) {
    Say("unreftd was already up without a supervisor; `unreft down --keep-memory` first, to "
        "start it with one");
  }
  Print(context, document,
        options.print_env ? Exports(context.place) : Text(context.place, document));
  return kExitOk;
}

std::string IsNodeCount(const std::string& text) {
  if (std::string why = IsRange(text); !why.empty()) return why;
  const uint64_t nodes = ParseRange(text).max;
  if (nodes <= kNodesMax) return "";
  return fmt::format("at most {} nodes can be on one machine, found {}", kNodesMax, nodes);
}

}  // namespace

void AddUp(CLI::App& app, Context& context) {
  auto options = std::make_shared<UpOptions>();
  CLI::App* command = AddCommand(app, "up", "start unreftd in the background, if it is not up");
  command
      ->add_option_function<std::string>(
          "--nodes", [options](const std::string& text) { options->nodes = ParseRange(text); },
          "N or MIN:MAX: so many nodes of the job on this machine, and a meta store; with MIN of "
          "them the job begins, later ones are let in by its restarts")
      ->check(IsNodeCount);
  command->add_option("--data-chunks", options->data_chunks, "k of the protection groups")
      ->check(CLI::Range(1, 64));
  command
      ->add_option("--spares", options->spares,
                   "so many daemons more, each to take the slot of a node that is lost")
      ->check(CLI::Range(0, 16));
  command
      ->add_option("--parity-chunks", options->parity_chunks,
                   "m of the protection groups: so many nodes may be lost; 0: none")
      ->check(CLI::Range(0, 63));
  command
      ->add_option(
          "--tls-dir", options->tls_dir,
          "with --nodes: ca.pem, meta.pem, meta.key and of each node nodeI.pem, nodeI.key; "
          "all talk by TLS")
      ->check(CLI::ExistingDirectory);
  command->add_flag("--insecure", options->insecure,
                    "with --nodes: all talk by TCP on the loopback without TLS, where every user "
                    "of this machine can read and forge the job's state");
  command->add_flag("--supervise", options->start.supervise,
                    "keep a supervisor that starts unreftd again when it dies");
  command->add_flag("--print-env", options->print_env,
                    "print only the export lines: eval \"$(unreft up --print-env)\"");
  command->add_option("--wait-ms", options->wait_ms, "how long unreftd may take to answer")
      ->capture_default_str();
  command->add_option("--daemon", options->start.daemon_path, "another unreftd to start")
      ->check(CLI::ExistingFile);
  command->footer(
      "Words after -- are handed to unreftd: unreft up -- --slots-per-rank 2\n"
      "After `up --nodes`: `up` starts what is not up, `up --node I` one node, a new one if it was "
      "destroyed.\n"
      "`up --nodes 3:5` starts three; `up` then starts the other two, `up --node 3` one of them.");
  OnChosenForAll(command, context, [&context, options] { return Up(context, *options); });
}

}  // namespace unreft::cli
