#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/layout_files.h"
#include "tools/cli/layout_plan.h"
#include "tools/cli/restore_table.h"

namespace unreft::cli {
namespace {

int PlanOfAll(const Context& context, const Rates& rates) {
  auto answer = AskJob(context, "plan", context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  const std::vector<JobNode> nodes = NodesOf(*answer, "plan");
  nlohmann::json document = NodesJson(context, nodes);
  RestoreTable told;
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

int PlanOfLayout(const Context& context, const std::string& path, const Rates& rates) {
  absl::StatusOr<layout::JobLayout> layout = ReadLayouts(path);
  if (!layout.ok()) return Fail(context, layout.status());
  const auto nodes = AskOfLayout(context, *std::move(layout));
  if (!nodes.ok()) return Fail(context, nodes.status());
  RestoreTable told{.is_of_layout = true};
  nlohmann::json document = nodes->begin()->second;
  document.erase("ranks");
  document["nodes"] = nlohmann::json::array();
  for (const auto& [node, answer] : *nodes) {
    told.Add(node, answer, rates);
    nlohmann::json json = Summed(answer, rates);
    json["node"] = node;
    json["ranks"] = answer.at("ranks");
    document["nodes"].push_back(std::move(json));
  }
  told.AddUnwanted(document);
  Print(context, document, told.Text(rates));
  return told.is_refused ? kExitFailed : kExitOk;
}

int Plan(const Context& context, bool own, const Rates& rates) {
  const absl::StatusOr<bool> several = own ? false : IsOfSeveralNodes(context);
  if (!several.ok()) return Fail(context, several.status());
  if (*several) return PlanOfAll(context, rates);
  auto answer = AskDaemon(context.place, "plan", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  RestoreTable told;
  told.Add(context.place.node, *answer, rates);
  answer->update(Summed(*answer, rates));
  Print(context, *answer, told.Text(rates));
  return told.is_refused ? kExitFailed : kExitOk;
}

}  // namespace

void AddPlan(CLI::App& app, Context& context) {
  CLI::App* command =
      AddCommand(app, "plan", "what ranks would restore if they began anew now, and from where");
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
      "some rank would not restore, or no rank of the layout has what is stored, or a node that is "
      "not lost does not answer.");
  const std::shared_ptr<bool> own = AddOwn(command);
  const auto layout = std::make_shared<std::string>();
  command
      ->add_option("--layout", *layout,
                   "FILE: not of registered ranks, but of those that `unreft run --dry-run FILE` "
                   "has asked; or a directory with a file of each rank")
      ->excludes("--own");
  OnChosenForAll(command, context, [&context, own, rates, layout] {
    if (!layout->empty()) return PlanOfLayout(context, *layout, *rates);
    return Plan(context, *own, *rates);
  });
}

}  // namespace unreft::cli
