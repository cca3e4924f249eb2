#include "tools/cli/node_answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/admin_client.h"

namespace unreft::cli {

std::vector<NodeAnswer> AskNodes(const Cluster& cluster, const std::string& verb,
                                 Milliseconds timeout,
                                 const std::function<Milliseconds(const Place&)>& patience) {
  std::vector<NodeAnswer> nodes;
  for (const Place& place : NodePlaces(cluster, timeout)) {
    nodes.push_back(
        {nodes.size(), place,
         AskDaemon(place, verb, nlohmann::json::object(), patience ? patience(place) : timeout)});
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

std::string SilentNodes(const std::vector<NodeAnswer>& nodes) {
  std::string text;
  for (const NodeAnswer& node : nodes) {
    if (node.answer.ok()) continue;
    text += fmt::format("node {} does not answer: {}\n", node.node,
                        std::string(node.answer.status().message()));
  }
  return text;
}

absl::Status AnyAnswered(const std::vector<NodeAnswer>& nodes) {
  const bool any = std::any_of(nodes.begin(), nodes.end(),
                               [](const NodeAnswer& node) { return node.answer.ok(); });
  return any ? absl::OkStatus() : AllAnswered(nodes);
}

absl::Status AllAnswered(const std::vector<NodeAnswer>& nodes) {
  for (const NodeAnswer& node : nodes) {
    if (!node.answer.ok()) return node.answer.status();
  }
  return absl::OkStatus();
}

}  // namespace unreft::cli
