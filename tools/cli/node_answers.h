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
  Place place;
  absl::StatusOr<nlohmann::json> answer;
};

// One after another, by node. `timeout` says how long that node may take.
std::vector<NodeAnswer> AskNodes(const Cluster& cluster, const std::string& verb,
                                 const std::function<Milliseconds(const Place&)>& timeout);

// {"job", "run_dir", "nodes": [{"node", "run_dir", "running", and what it answered or "error"}]}
nlohmann::json NodesJson(const Cluster& cluster, const std::vector<NodeAnswer>& nodes);

// A line of each node that did not answer.
std::string SilentNodes(const std::vector<NodeAnswer>& nodes);

// OK when at least one node answered, otherwise what the first one failed with.
absl::Status AnyAnswered(const std::vector<NodeAnswer>& nodes);
// OK when all answered, otherwise what the first of the others failed with.
absl::Status AllAnswered(const std::vector<NodeAnswer>& nodes);

}  // namespace unreft::cli
