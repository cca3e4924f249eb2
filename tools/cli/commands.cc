#include "tools/cli/commands.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::cli {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description) {
  CLI::App* command = app.add_subcommand(name, description);
  command->fallthrough();
  command->footer(
      "The options of `unreft --help` may stand here, too: --job, --run-dir, --json ...");
  return command;
}

std::shared_ptr<bool> AddOwn(CLI::App* command) {
  auto own = std::make_shared<bool>(false);
  command->add_flag("--own", *own, "of this daemon alone, not of all nodes of its job");
  return own;
}

void OnChosen(CLI::App* command, Context& context, std::function<int()> run) {
  OnChosenForAll(command, context, [&context, command, run = std::move(run)] {
    if (context.all_nodes() == nullptr) return run();
    return Fail(context, absl::InvalidArgumentError(fmt::format(
                             "job {} has {} nodes on this machine: which one? {} --node 0",
                             context.place.job, context.cluster->nodes, command->get_name())));
  });
}

void OnChosenForAll(CLI::App* command, Context& context, std::function<int()> run) {
  command->callback([&context, run = std::move(run)] { context.command = run; });
}

}  // namespace unreft::cli
