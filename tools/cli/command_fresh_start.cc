#include <fmt/format.h>

#include <memory>

#include "tools/cli/commands.h"
#include "tools/cli/job_answers.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

int FreshStart(const Context& context, bool force) {
  auto answer = AskLeader(context, "fresh-start", {{"force", force}});
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
  const auto force = std::make_shared<bool>(false);
  command->add_flag("--force", *force,
                    "also while ranks are connected: nothing that they capture is committed until "
                    "they are started again");
  OnChosenForAll(command, context, [&context, force] { return FreshStart(context, *force); });
}

}  // namespace unreft::cli
