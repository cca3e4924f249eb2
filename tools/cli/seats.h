// Seats: on which nodes of a job the ranks of an attempt run, and beside which daemons. SeatFinder
// waits until there are enough, as `unreft run` was told to. Blocking, single-threaded.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/cluster.h"
#include "tools/cli/deadline.h"
#include "tools/cli/placement.h"
#include "tools/cli/resize_wish.h"
#include "tools/cli/wish_watch.h"

namespace unreft::cli {

struct Seats {
  std::vector<uint64_t> nodes;   // ascending
  std::vector<uint64_t> places;  // of each of them
};

// Which daemon each node has now; what daemons say of it is waited for so long.
Placement PlacementNow(const Cluster& cluster, Milliseconds timeout);

// The nodes that have a daemon, of that placement.
std::set<uint64_t> NodesThere(const Cluster& cluster, const Placement& placement);

struct SeatOptions {
  RunShape shape;
  Milliseconds timeout{10000};   // of a question to a daemon
  Milliseconds shrink_after{0};  // so long all nodes that are wished are waited for
  // An event, and the same in words.
  std::function<void(const nlohmann::json& event, const std::string& text)> tell;
};

class SeatFinder {
 public:
  // All outlive this.
  SeatFinder(const Cluster& cluster, SeatOptions options, WishWatch& wishes)
      : cluster_(cluster), options_(std::move(options)), wishes_(wishes) {}

  // Those of the next attempt: a slot without a daemon is a spare's as long as one waits; then, if
  // `replace`, it gets a new one, or is left out. Cancelled once `signals` is readable; -1: none is
  // looked for.
  absl::StatusOr<Seats> Find(bool replace, int signals);

 private:
  struct Found {
    Placement placement;
    std::vector<uint64_t> nodes;
  };

  absl::StatusOr<Found> WaitForNodes(bool replace, int signals);
  absl::Status ReplaceNode(uint64_t node);
  void Tell(const nlohmann::json& event, const std::string& text) { options_.tell(event, text); }

  const Cluster& cluster_;
  const SeatOptions options_;
  WishWatch& wishes_;
  std::set<uint64_t> before_;  // the nodes of the last attempt
};

}  // namespace unreft::cli
