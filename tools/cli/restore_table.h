// RestoreTable: what ranks would restore, as daemons forecast it (smp/node/forecast.h), as a table
// and its sums, for people and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/table.h"

namespace unreft::cli {

struct Rates {
  double memory_gib_s = 4;   // how fast the ranks of a node together read what lies on it
  double network_gib_s = 1;  // how fast a node reads from the others
};

// What a node's ranks would restore, by its answer.
nlohmann::json Summed(const nlohmann::json& answer, const Rates& rates);

struct RestoreTable {
  bool is_of_layout = false;  // its ranks are those of a layout, not registered ones
  Table table{{"node", "rank", "tensors", "from this node", "from others", "decoded"}};
  std::string problems;  // a line each
  nlohmann::json version;
  uint64_t source_world = 0;
  uint64_t world = 0;
  uint64_t ranks = 0;
  bool is_refused = false;  // for some rank, or since no rank restores what is stored
  bool is_silent = false;   // some node, whose ranks are not among these
  double slowest_s = 0;
  uint64_t slowest_node = 0;

  // A node's answer, of its ranks alone.
  void Add(uint64_t node, const nlohmann::json& answer, const Rates& rates);
  // What is stored, and no rank of a layout restores; as all answers about it say.
  void AddUnwanted(const nlohmann::json& answer);
  std::string Text(const Rates& rates) const;
};

}  // namespace unreft::cli
