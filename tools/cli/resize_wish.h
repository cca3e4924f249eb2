// ResizeWish: what an operator has ordered by `unreft resize`, and what a launcher makes of it: the
// nodes of the next attempt, and whether the one that runs is to end for it. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/cli/node_range.h"

namespace unreft::cli {

struct ResizeWish {
  std::optional<uint64_t> nodes;  // on how many; none: on all but `without`
  std::set<uint64_t> without;
  uint64_t ordered_s = 0;  // seconds since 1970; 0: not said
  bool operator==(const ResizeWish&) const = default;

  std::string Text() const;  // "3 nodes, without node 1"
};

// What a daemon says when it is asked "resize". What is not of that shape says nothing: it may be
// of another release, and nobody's training ends for that.
struct ResizeAnswer {
  std::optional<ResizeWish> wish;
  nlohmann::json committed;  // null: nothing is
  std::set<uint64_t> there;  // nodes that the leader hears of
  std::set<uint64_t> lost;
};
ResizeAnswer ParseResize(const nlohmann::json& answer);

// Of a job that `unreft run` starts; by CheckRange each number of nodes in the range has ranks.
struct RunShape {
  uint64_t nodes = 0;
  NodeRange range;
};

// What becomes of the wish while ranks run on those nodes.
struct WishVerdict {
  enum class Kind { kMet, kMove, kCannot };
  Kind kind = Kind::kMet;
  std::vector<uint64_t> nodes;  // kMove: of the next attempt
  std::string why;              // kCannot
};
// `there`: nodes that have a daemon. Ranks stay where they are as far as the wish lets them.
WishVerdict Judge(const ResizeWish& wish, const std::set<uint64_t>& running,
                  const std::set<uint64_t>& there, const RunShape& shape);

// What there is for an attempt that is about to begin.
struct NodesAtHand {
  std::set<uint64_t> there;   // nodes that have a daemon
  std::set<uint64_t> before;  // on which the last attempt ran
  bool replace = false;       // those that have none get one
  bool has_waited = false;    // long enough for more of them
};
struct NodeChoice {
  std::vector<uint64_t> nodes;
  std::string ignored;  // why the wish is not heeded; empty: it is, or there is none
};
// None: more nodes are waited for. Training on others is better than none on those that are wished.
std::optional<NodeChoice> ChooseNodes(const std::optional<ResizeWish>& wish,
                                      const NodesAtHand& at_hand, const RunShape& shape);

}  // namespace unreft::cli
