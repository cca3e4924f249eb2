#include "tools/cli/job_answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/admin_client.h"

namespace unreft::cli {
namespace {

// Of the daemon that asks the others, for itself.
constexpr Milliseconds kMargin(1000);

// Less than the asked daemon is waited for, so that one that hangs is named.
Milliseconds NodeTimeout(Milliseconds patience) {
  return std::max(patience / 2, patience - 2 * kMargin);
}

}  // namespace

absl::StatusOr<nlohmann::json> AskJob(const Context& context, const std::string& verb,
                                      Milliseconds patience) {
  const nlohmann::json arguments{{"of", verb}, {"timeout_ms", NodeTimeout(patience).count()}};
  if (context.cluster) return AskCluster(*context.cluster, patience, arguments);
  return AskDaemon(context.place, "cluster", arguments, patience);
}

absl::StatusOr<nlohmann::json> AskLeader(const Context& context, const std::string& verb,
                                         const nlohmann::json& arguments) {
  const Cluster* cluster = context.all_nodes();
  if (cluster == nullptr) return AskDaemon(context.place, verb, arguments, context.timeout());
  absl::StatusOr<nlohmann::json> answer;
  for (const Place& place : NodePlaces(*cluster, context.timeout())) {
    answer = AskDaemon(place, verb, arguments, context.timeout());
    if (!absl::IsUnavailable(answer.status())) break;
  }
  return answer;
}

absl::StatusOr<bool> IsOfSeveralNodes(const Context& context) {
  if (context.all_nodes() != nullptr) return true;
  if (context.cluster) return false;  // one of its nodes was named
  auto status = AskDaemon(context.place, "status", nlohmann::json::object(), context.timeout());
  if (!status.ok()) return status.status();
  return status->value("nodes", uint64_t{1}) > 1;
}

std::vector<JobNode> NodesOf(const nlohmann::json& answer, const std::string& verb) {
  std::vector<JobNode> nodes;
  for (const nlohmann::json& member : answer.value("members", nlohmann::json::array())) {
    JobNode node;
    node.node = member.at("slot");
    node.place = member.value("place", uint64_t{0});
    node.lost = member.value("lost", false);
    node.left_out = member.value("left_out", false);
    const auto own = member.find(verb);
    const auto error = member.find("error");
    if (own != member.end() && own->is_object()) {
      node.answer = *own;
    } else if (error != member.end() && error->is_string()) {
      node.answer = absl::UnavailableError(error->get<std::string>());
    } else {
      node.answer = absl::UnavailableError(node.lost ? "it is lost" : "it is absent");
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

nlohmann::json NodesJson(const Context& context, const std::vector<JobNode>& nodes) {
  nlohmann::json document{{"job", context.place.job},
                          {"run_dir", context.place.run_dir},
                          {"nodes", nlohmann::json::array()}};
  for (const JobNode& node : nodes) {
    nlohmann::json json = node.answer.ok() ? *node.answer : nlohmann::json::object();
    json["node"] = node.node;
    json["place"] = node.place;
    if (context.cluster) json["run_dir"] = context.cluster->NodePlace(node.place).run_dir;
    json["running"] = node.answer.ok();
    if (!node.answer.ok()) json["error"] = std::string(node.answer.status().message());
    document["nodes"].push_back(std::move(json));
  }
  return document;
}

std::string SilentNodes(const std::vector<JobNode>& nodes) {
  std::string text;
  for (const JobNode& node : nodes) {
    if (node.answer.ok()) continue;
    text += fmt::format("node {} does not answer: {}\n", node.node,
                        std::string(node.answer.status().message()));
  }
  return text;
}

absl::Status AllAnswered(const std::vector<JobNode>& nodes) {
  for (const JobNode& node : nodes) {
    if (!node.answer.ok() && !node.left_out) return node.answer.status();
  }
  return absl::OkStatus();
}

}  // namespace unreft::cli
