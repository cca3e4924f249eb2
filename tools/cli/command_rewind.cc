#include <fmt/format.h>

#include <memory>
#include <optional>

#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

struct RewindOptions {
  std::optional<uint64_t> to;
  bool cancel = false;
};

std::string Text(const nlohmann::json& answer) {
  Table table({"version", "world", "committed", "pinned by"});
  for (const nlohmann::json& version : answer.value("versions", nlohmann::json::array())) {
    std::string owners;
    for (const nlohmann::json& owner : version.value("pinned_by", nlohmann::json::array())) {
      owners += (owners.empty() ? "" : ",") + owner.get<std::string>();
    }
    table.Add({VersionCell(version), Cell(version, "world"), Cell(version, "committed"),
               owners.empty() ? "-" : owners});
  }
  const auto order = answer.find("order");
  const bool is_ordered = order != answer.end() && order->is_object();
  std::string text = table.empty() ? "no version is whole\n" : table.Text();
  text += is_ordered ? fmt::format("the next attempt restores version {}, or nothing\n",
                                   VersionCell(*order))
                     : "the next attempt restores the newest version that is whole\n";
  return text;
}

int Rewind(const Context& context, const RewindOptions& options) {
  nlohmann::json arguments = nlohmann::json::object();
  if (options.to) arguments["step"] = *options.to;
  if (options.cancel) arguments["cancel"] = true;
  auto answer = AskLeader(context, "rewind", arguments);
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, Text(*answer));
  return kExitOk;
}

}  // namespace

void AddRewind(CLI::App& app, Context& context) {
  auto options = std::make_shared<RewindOptions>();
  CLI::App* command = AddCommand(app, "rewind", "have the next attempt restore an older version");
  auto* to = command->add_option("--to", options->to, "the step");
  command->add_flag("--cancel", options->cancel, "the newest after all")->excludes(to);
  command->footer(
      "Without an option: the versions that could be restored, by what the nodes hold now. An "
      "order keeps its version, for a week at most, and the next attempt restores exactly that one "
      "or fails. Newer versions are given up with that, not before: until then training goes on.");
  OnChosenForAll(command, context, [&context, options] { return Rewind(context, *options); });
}

}  // namespace unreft::cli
