#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"

namespace unreft::cli {
namespace {

int Metrics(const Context& context) {
  auto answer = AskDaemon(context.place, "metrics", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, answer->value("text", ""));
  return kExitOk;
}

}  // namespace

void AddMetrics(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "metrics", "the daemon's metrics, in Prometheus' text form");
  OnChosen(command, context, [&context] { return Metrics(context); });
}

}  // namespace unreft::cli
