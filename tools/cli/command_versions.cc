#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

std::string List(const nlohmann::json& version, const char* key) {
  std::vector<std::string> numbers;
  for (const nlohmann::json& number : version.value(key, nlohmann::json::array())) {
    numbers.push_back(number.is_string() ? number.get<std::string>() : number.dump());
  }
  return numbers.empty() ? "-" : fmt::format("{}", fmt::join(numbers, ","));
}

std::string Text(const nlohmann::json& document, bool several_nodes) {
  std::vector<std::string> head{"version", "world",     "ranks",    "whole",
                                "live",    "committed", "pinned by"};
  if (several_nodes) head.insert(head.begin() + 3, "nodes");
  Table table(head);
  for (const nlohmann::json& version : document.value("versions", nlohmann::json::array())) {
    std::vector<std::string> row{VersionCell(version),      Cell(version, "world"),
                                 List(version, "ranks"),    Cell(version, "whole"),
                                 Cell(version, "live"),     Cell(version, "committed"),
                                 List(version, "pinned_by")};
    if (several_nodes) row.insert(row.begin() + 3, List(version, "nodes"));
    table.Add(std::move(row));
  }
  return table.empty() ? "no version is stored\n" : table.Text();
}

// What the nodes hold together: newest first, with the nodes on which the ranks' parts are.
nlohmann::json Together(const std::vector<JobNode>& nodes) {
  struct Held {
    uint64_t world = 0;
    std::set<uint64_t> ranks;
    std::set<uint64_t> nodes;
    bool live = false;
    bool committed = false;
    std::set<std::string> pinned_by;
  };
  // Timelines of one number and another id are two: by number, id and step.
  std::map<std::array<uint64_t, 3>, Held, std::greater<>> all;
  for (const JobNode& node : nodes) {
    if (!node.answer.ok()) continue;
    for (const nlohmann::json& version : node.answer->value("versions", nlohmann::json::array())) {
      Held& held =
          all[{version.at("timeline"), version.value("timeline_id", 0U), version.at("step")}];
      held.world = std::max(held.world, version.at("world").get<uint64_t>());
      for (const nlohmann::json& rank : version.at("ranks")) held.ranks.insert(uint64_t{rank});
      held.nodes.insert(node.node);
      held.live |= version.at("live").get<bool>();
      held.committed |= version.at("committed").get<bool>();
      for (const nlohmann::json& owner : version.value("pinned_by", nlohmann::json::array())) {
        held.pinned_by.insert(owner.get<std::string>());
      }
    }
  }
  nlohmann::json versions = nlohmann::json::array();
  bool newer_committed = false;  // of which some node has not heard yet
  for (auto& [version, held] : all) {
    held.committed = held.committed && !newer_committed;
    newer_committed |= held.committed;
    const auto& [timeline, timeline_id, step] = version;
    versions.push_back({{"timeline", timeline},
                        {"timeline_id", timeline_id},
                        {"step", step},
                        {"world", held.world},
                        {"ranks", held.ranks},
                        {"nodes", held.nodes},
                        {"whole", held.ranks.size() == held.world},
                        {"live", held.live},
                        {"committed", held.committed},
                        {"pinned_by", held.pinned_by}});
  }
  return versions;
}

int VersionsOfAll(const Context& context) {
  auto answer = AskJob(context, "versions", context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  const std::vector<JobNode> nodes = NodesOf(*answer, "versions");
  nlohmann::json document = NodesJson(context, nodes);
  document["versions"] = Together(nodes);
  Print(context, document, Text(document, /*several_nodes=*/true) + SilentNodes(nodes));
  return kExitOk;
}

int Versions(const Context& context, bool own) {
  const absl::StatusOr<bool> several = own ? false : IsOfSeveralNodes(context);
  if (!several.ok()) return Fail(context, several.status());
  if (*several) return VersionsOfAll(context);
  auto answer = AskDaemon(context.place, "versions", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, Text(*answer, /*several_nodes=*/false));
  return kExitOk;
}

}  // namespace

void AddVersions(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "versions", "every version held, timeline:step");
  command->footer(
      "whole: every rank's own part is there, on the nodes that answered; what is lost with a node "
      "may still be decoded. live: on the way to the present, so it may be restored.");
  const std::shared_ptr<bool> own = AddOwn(command);
  OnChosenForAll(command, context, [&context, own] { return Versions(context, *own); });
}

}  // namespace unreft::cli
