#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

std::string RankList(const nlohmann::json& version) {
  std::vector<std::string> ranks;
  for (const nlohmann::json& rank : version.value("ranks", nlohmann::json::array())) {
    ranks.push_back(rank.dump());
  }
  return ranks.empty() ? "-" : fmt::format("{}", fmt::join(ranks, ","));
}

std::string Text(const nlohmann::json& document) {
  Table table({"version", "world", "ranks", "whole", "live", "committed"});
  for (const nlohmann::json& version : document.value("versions", nlohmann::json::array())) {
    table.Add({VersionCell(version), Cell(version, "world"), RankList(version),
               Cell(version, "whole"), Cell(version, "live"), Cell(version, "committed")});
  }
  return table.empty() ? "no version is stored\n" : table.Text();
}

int Versions(const Context& context) {
  auto answer = AskDaemon(context.place, "versions", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, Text(*answer));
  return kExitOk;
}

}  // namespace

void AddVersions(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "versions", "every version held, timeline:step");
  command->footer(
      "whole: every rank's part is there. live: on the way to the present, so it may be restored.");
  OnChosen(command, context, [&context] { return Versions(context); });
}

}  // namespace unreft::cli
