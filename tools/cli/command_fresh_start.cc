#include <fmt/format.h>

#include <memory>

#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Any node passes it on to the leader.
absl::StatusOr<nlohmann::json> Ask(const Context& context, bool force) {
  const nlohmann::json arguments{{"force", force}};
  const Cluster* cluster = context.all_nodes();
  if (cluster == nullptr) {
    return AskDaemon(context.place, "fresh-start", arguments, context.timeout());
  }
  absl::StatusOr<nlohmann::json> answer;
  for (const Place& place : NodePlaces(*cluster, context.timeout())) {
    answer = AskDaemon(place, "fresh-start", arguments, context.timeout());
    if (!absl::IsUnavailable(answer.status())) break;
  }
  return answer;
}

int FreshStart(const Context& context, bool force) {
  auto answer = Ask(context, force);
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
