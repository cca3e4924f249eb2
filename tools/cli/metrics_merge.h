// The metrics of several nodes as one text, in Prometheus' text form. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace unreft::cli {

struct NodeMetrics {
  uint64_t node = 0;
  bool up = false;
  std::string text;  // of its daemon, when it is up
};

// Each family is there once, and unreft_node_up says of every node whether it answered. The samples
// have their labels job and node from the daemons.
std::string MergeMetrics(const std::string& job, const std::vector<NodeMetrics>& nodes);

}  // namespace unreft::cli
