// What all nodes of a cluster answer to one question. A node that does not answer is part of it.
#pragma once

#include <absl/status/statusor.h>

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

// One after another, by node, each where it is now.
std::vector<NodeAnswer> AskNodes(const Cluster& cluster, const std::string& verb,
                                 Milliseconds timeout);

// {"job", "run_dir", "nodes": [{"node", "place", "run_dir", "running", and what it answered or
// "error"}]}
nlohmann::json NodesJson(const Cluster& cluster, const std::vector<NodeAnswer>& nodes);

// OK when at least one node answered, otherwise what the first one failed with.
absl::Status AnyAnswered(const std::vector<NodeAnswer>& nodes);

}  // namespace unreft::cli
