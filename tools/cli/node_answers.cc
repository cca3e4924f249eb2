#include "tools/cli/node_answers.h"

#include "tools/cli/admin_client.h"

namespace unreft::cli {

std::vector<NodeAnswer> AskNodes(const Cluster& cluster, const std::string& verb,
                                 Milliseconds timeout) {
  std::vector<NodeAnswer> nodes;
  for (const Place& place : NodePlaces(cluster, timeout)) {
    nodes.push_back(
        {nodes.size(), place, AskDaemon(place, verb, nlohmann::json::object(), timeout)});
  }
  return nodes;
}

nlohmann::json NodesJson(const Cluster& cluster, const std::vector<NodeAnswer>& nodes) {
  nlohmann::json document{{"job", cluster.place.job},
                          {"run_dir", cluster.place.run_dir},
                          {"nodes", nlohmann::json::array()}};
  for (const NodeAnswer& node : nodes) {
    nlohmann::json json = node.answer.ok() ? *node.answer : nlohmann::json::object();
    json["node"] = node.node;
    json["place"] = node.place.node;
    json["run_dir"] = node.place.run_dir;
    json["running"] = node.answer.ok();
    if (!node.answer.ok()) json["error"] = std::string(node.answer.status().message());
    document["nodes"].push_back(std::move(json));
  }
  return document;
}

absl::Status AnyAnswered(const std::vector<NodeAnswer>& nodes) {
  absl::Status first;
  for (const NodeAnswer& node : nodes) {
    if (node.answer.ok()) return absl::OkStatus();
    if (first.ok()) first = node.answer.status();
  }
  return first;
}

}  // namespace unreft::cli
