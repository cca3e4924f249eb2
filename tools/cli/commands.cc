#include "tools/cli/commands.h"

#include <utility>

namespace unreft::cli {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description) {
  CLI::App* command = app.add_subcommand(name, description);
  command->fallthrough();
  command->footer(
      "The options of `unreft --help` may stand here, too: --job, --run-dir, --json ...");
  return command;
}

void OnChosen(CLI::App* command, Context& context, std::function<int()> run) {
  command->callback([&context, run = std::move(run)] { context.command = run; });
}

}  // namespace unreft::cli
