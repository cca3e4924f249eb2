#include "tools/cli/admin_client.h"
#include "tools/cli/commands.h"
#include "tools/cli/metrics_merge.h"
#include "tools/cli/node_answers.h"

namespace unreft::cli {
namespace {

int MetricsOfAll(const Context& context, const Cluster& cluster) {
  const std::vector<NodeAnswer> nodes = AskNodes(cluster, "metrics", context.timeout());
  if (absl::Status status = AnyAnswered(nodes); !status.ok()) return Fail(context, status);
  std::vector<NodeMetrics> metrics;
  for (const NodeAnswer& node : nodes) {
    const bool up = node.answer.ok();
    metrics.push_back({node.node, up, up ? node.answer->value("text", "") : ""});
  }
  nlohmann::json document = NodesJson(cluster, nodes);
  document["text"] = MergeMetrics(cluster.place.job, metrics);
  Print(context, document, document["text"]);
  return kExitOk;
}

int Metrics(const Context& context) {
  if (const Cluster* cluster = context.all_nodes()) return MetricsOfAll(context, *cluster);
  auto answer = AskDaemon(context.place, "metrics", nlohmann::json::object(), context.timeout());
  if (!answer.ok()) return Fail(context, answer.status());
  Print(context, *answer, answer->value("text", ""));
  return kExitOk;
}

}  // namespace

void AddMetrics(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand(app, "metrics", "the daemon's metrics, in Prometheus' text form");
  OnChosenForAll(command, context, [&context] { return Metrics(context); });
}

}  // namespace unreft::cli
