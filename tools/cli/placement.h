// Placement: which daemon each node of a cluster has now, and what is to be done before ranks are
// started beside them. Decides only; `unreft run` acts.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/cli/cluster.h"

namespace unreft::cli {

struct Placement {
  std::vector<uint64_t> places;  // by node
  // A spare is there for a node without a daemon, or nobody says yet who is where: to be asked
  // again.
  bool unsettled = false;
  std::vector<uint64_t> vacant;  // nodes without a daemon
};

// `answer`: to "cluster"; null when none came. `is_served`: whether the place has a daemon, or a
// supervisor that looks after one.
Placement FindPlacement(const Cluster& cluster, const nlohmann::json& answer,
                        absl::FunctionRef<bool(uint64_t place)> is_served);

}  // namespace unreft::cli
