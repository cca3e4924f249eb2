#include <fmt/format.h>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

int FreshStart(const Context& context) {
  auto answer =
      AskDaemon(context.place, "fresh-start", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer,
        fmt::format("{}: what was committed is given up; the next attempt starts from nothing, on "
                    "timeline {}\n",
                    context.place.Name(), Cell(*answer, "timeline")));
  return kExitOk;
}

}  // namespace

void AddFreshStart(CLI::App& app, Context& context) {
  CLI::App* command =
      AddCommand(app, "fresh-start", "give up what was committed: the next attempt starts anew");
  OnChosen(command, context, [&context] { return FreshStart(context); });
}

}  // namespace unreft::cli
