// What all nodes of a cluster answer to one question. A node that does not answer is part of it.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/cli/cluster.h"

namespace unreft::cli {

struct NodeAnswer {
  uint64_t node = 0;
  Place place;  // where it is now
  absl::StatusOr<nlohmann::json> answer;
};

// One after another, by node, each where it is now. `patience` says how long that node may take;
// without it `timeout` does.
std::vector<NodeAnswer> AskNodes(
    const Cluster& cluster, const std::string& verb, Milliseconds timeout,
    const std::function<Milliseconds(const Place&)>& patience = nullptr);

// {"job", "run_dir", "nodes": [{"node", "place", "run_dir", "running", and what it answered or
// "error"}]}
nlohmann::json NodesJson(const Cluster& cluster, const std::vector<NodeAnswer>& nodes);

// A line of each node that did not answer.
std::string SilentNodes(const std::vector<NodeAnswer>& nodes);

// OK when at least one node answered, otherwise what the first one failed with.
absl::Status AnyAnswered(const std::vector<NodeAnswer>& nodes);
// OK when all answered, otherwise what the first of the others failed with.
absl::Status AllAnswered(const std::vector<NodeAnswer>& nodes);

}  // namespace unreft::cli
