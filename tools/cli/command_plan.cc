#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

struct Rates {
  double memory_gib_s = 4;
  double network_gib_s = 1;
};

// Of a node, or of all.
struct Bytes {
  uint64_t local = 0;
  uint64_t peer = 0;
  uint64_t decoded = 0;

  static Bytes Of(const nlohmann::json& rank) {
    return {rank.value("local_bytes", uint64_t{0}), rank.value("peer_bytes", uint64_t{0}),
            rank.value("decoded_bytes", uint64_t{0})};
  }
  Bytes& operator+=(const Bytes& other) {
    local += other.local;
    peer += other.peer;
    decoded += other.decoded;
    return *this;
  }
  // For each lost block as many are read as the code has data.
  double Seconds(const Rates& rates, uint64_t data_chunks) const {
    const double over_network =
        static_cast<double>(peer) + static_cast<double>(decoded) * static_cast<double>(data_chunks);
    return static_cast<double>(local) / kGib / rates.memory_gib_s +
           over_network / kGib / rates.network_gib_s;
  }
};

// What a node's ranks would restore, by its answer.
nlohmann::json Summed(const nlohmann::json& answer, const Rates& rates) {
  Bytes bytes;
  for (const nlohmann::json& rank : answer.value("ranks", nlohmann::json::array())) {
    bytes += Bytes::Of(rank);
  }
  return {{"local_bytes", bytes.local},
          {"peer_bytes", bytes.peer},
          {"decoded_bytes", bytes.decoded},
          {"seconds", bytes.Seconds(rates, answer.value("data_chunks", uint64_t{1}))}};
}

std::string TensorsNotStored(const nlohmann::json& rank) {
  const auto names = rank.value("not_stored_names", std::vector<std::string>{});
  const auto count = rank.value("not_stored", uint64_t{0});
  return fmt::format("{} of its tensors {} not stored: {}{}", count, count == 1 ? "is" : "are",
                     fmt::join(names, ", "), names.size() < count ? ", ..." : "");
}

struct Told {
  Table table{{"node", "rank", "tensors", "from this node", "from others", "decoded"}};
  std::string problems;  // a line each
  nlohmann::json version;
  uint64_t source_world = 0;
  uint64_t world = 0;
  uint64_t ranks = 0;
  bool is_refused = false;  // for some rank
  bool is_silent = false;   // some node, whose ranks are not among these
  double slowest_s = 0;
  uint64_t slowest_node = 0;

  void Add(uint64_t node, const nlohmann::json& answer, const Rates& rates) {
    if (version.is_null()) {
      version = answer.at("version");
      source_world = answer.value("source_world", uint64_t{0});
    } else if (version != answer.at("version")) {
      problems +=
          fmt::format("node {} speaks of version {}: it was committed meanwhile; ask again\n", node,
                      VersionCell(answer.at("version")));
    }
    world = std::max(world, answer.value("world", uint64_t{0}));
    for (const nlohmann::json& rank : answer.value("ranks", nlohmann::json::array())) {
      ++ranks;
      const uint64_t number = rank.at("rank");
      const Bytes bytes = Bytes::Of(rank);
      table.Add({std::to_string(node), std::to_string(number), Cell(rank, "tensors"),
                 HumanBytes(bytes.local), HumanBytes(bytes.peer), HumanBytes(bytes.decoded)});
      if (const std::string problem = rank.value("problem", ""); !problem.empty()) {
        problems += fmt::format("rank {} would not restore: {}\n", number, problem);
        is_refused = true;
      }
      if (rank.value("not_stored", uint64_t{0}) > 0) {
        problems += fmt::format("rank {}: {}\n", number, TensorsNotStored(rank));
      }
    }
    const double seconds = Summed(answer, rates).at("seconds");
    if (seconds <= slowest_s) return;
    slowest_s = seconds;
    slowest_node = node;
  }

  std::string Text(const Rates& rates) const {
    if (ranks == 0) return "no rank has registered: ranks say what they restore as they attach\n";
    std::string text = fmt::format(
        "version {}, stored by {} ranks; {} of {} ranks have registered{}\n", VersionCell(version),
        source_world, ranks, world, is_silent ? " on the nodes that answer" : "");
    text += table.Text() + problems;
    text += fmt::format(
        "about {:.1f} s on node {}, the slowest{}, at {:g} GiB/s from a node's own memory and {:g} "
        "GiB/s from others\n",
        slowest_s, slowest_node, is_silent ? " of these" : "", rates.memory_gib_s,
        rates.network_gib_s);
    return text;
  }
};

int PlanOfAll(const Context& context, const Rates& rates) {
  auto answer = AskJob(context, "plan", context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  const std::vector<JobNode> nodes = NodesOf(*answer, "plan");
  nlohmann::json document = NodesJson(context, nodes);
  Told told;
  absl::Status first;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const JobNode& node = nodes[i];
    if (!node.answer.ok()) {
      if (first.ok()) first = node.answer.status();
      told.is_silent |= !node.lost;
      continue;
    }
    told.Add(node.node, *node.answer, rates);
    document["nodes"][i].update(Summed(*node.answer, rates));
  }
  if (told.version.is_null()) return Fail(context, first);
  Print(context, document, told.Text(rates) + SilentNodes(nodes));
  return told.is_refused || told.is_silent ? kExitFailed : kExitOk;
}

int Plan(const Context& context, bool own, const Rates& rates) {
  const absl::StatusOr<bool> several = own ? false : IsOfSeveralNodes(context);
  if (!several.ok()) return Fail(context, several.status());
  if (*several) return PlanOfAll(context, rates);
  auto answer = AskDaemon(context.place, "plan", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  Told told;
  told.Add(context.place.node, *answer, rates);
  answer->update(Summed(*answer, rates));
  Print(context, *answer, told.Text(rates));
  return told.is_refused ? kExitFailed : kExitOk;
}

}  // namespace

void AddPlan(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(
      app, "plan", "what the registered ranks would restore if they began anew now, from where");
  const auto rates = std::make_shared<Rates>();
  command
      ->add_option("--memory-gib-s", rates->memory_gib_s,
                   "how fast the ranks of a node together read what lies on it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--network-gib-s", rates->network_gib_s, "how fast a node reads from the others")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer(
      "Of the version that is committed. Nothing is changed, and training goes on. Lost slabs are "
      "decoded: for each of their bytes as many are read as the code has data chunks. Exit code 1: "
      "some rank would not restore, or a node that is not lost does not answer.");
  const std::shared_ptr<bool> own = AddOwn(command);
  OnChosenForAll(command, context, [&context, own, rates] { return Plan(context, *own, *rates); });
}

}  // namespace unreft::cli
