#include "tools/cli/seats.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tools/cli/daemon_control.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kPollInterval(50);
// A spare takes a slot as soon as the node is declared lost, seconds after its last sign of life.
constexpr Milliseconds kTakeoverTimeout(60000);

// Whether a daemon is there, or a supervisor that looks after it.
bool IsServed(const Place& place) {
  const FoundProcess daemon = FindDaemon(place);
  const FoundProcess supervisor = FindSupervisor(place);
  return !daemon.ok() || daemon->has_value() || !supervisor.ok() || supervisor->has_value();
}

// Ends the wait when a signal has come; -1: none is looked for.
absl::Status PollAgain(int signals) {
  pollfd signal{.fd = signals, .events = POLLIN, .revents = 0};
  const int ready = poll(&signal, signals < 0 ? 0 : 1, static_cast<int>(kPollInterval.count()));
  return ready > 0 ? absl::CancelledError("a signal has come") : absl::OkStatus();
}

}  // namespace

Placement PlacementNow(const Cluster& cluster, Milliseconds timeout) {
  nlohmann::json answer;
  if (cluster.spares > 0) {
    if (auto asked = AskCluster(cluster, timeout); asked.ok()) answer = *asked;
  }
  return FindPlacement(cluster, answer,
                       [&](uint64_t place) { return IsServed(cluster.NodePlace(place)); });
}

std::set<uint64_t> NodesThere(const Cluster& cluster, const Placement& placement) {
  std::set<uint64_t> there;
  for (uint64_t node = 0; node < cluster.nodes; ++node) {
    if (std::ranges::find(placement.vacant, node) == placement.vacant.end()) there.insert(node);
  }
  return there;
}

// Until a spare that is there has the slot of a lost node, or there are as many nodes as are
// wanted, or are needed at least. Without a range nobody waits for a node that has no daemon.
absl::StatusOr<SeatFinder::Found> SeatFinder::WaitForNodes(bool replace, int signals) {
  const Deadline takeover(kTakeoverTimeout);
  const Deadline shrink(options_.shrink_after);
  bool warned = false;
  bool said = false;
  while (true) {
    Placement placement = PlacementNow(cluster_, options_.timeout);
    const bool is_unsettled = placement.unsettled && !takeover.passed();
    if (placement.unsettled && takeover.passed() && !std::exchange(warned, true)) {
      const std::string text = fmt::format(
          "no spare has taken the slot of a lost node within {} ms", kTakeoverTimeout.count());
      Tell({{"event", "warning"}, {"text", text}}, text);
    }
    const std::set<uint64_t> there = NodesThere(cluster_, placement);
    const std::optional<ResizeWish> wish = wishes_.Newest();
    std::optional<NodeChoice> choice = ChooseNodes(
        wish,
        {.there = there, .before = before_, .replace = replace, .has_waited = shrink.passed()},
        options_.shape);
    if (!is_unsettled && choice) {
      if (wish && !choice->ignored.empty()) wishes_.SayItCannot(*wish, choice->ignored);
      return Found{std::move(placement), std::move(choice->nodes)};
    }
    if (!is_unsettled && !std::exchange(said, true)) {
      const std::string text = DescribeWait(options_.shape.range, placement.vacant, there.size());
      Tell({{"event", "waiting"}, {"nodes", placement.vacant}, {"text", text}}, text);
    }
    if (absl::Status status = PollAgain(signals); !status.ok()) return status;
  }
}

absl::StatusOr<Seats> SeatFinder::Find(bool replace, int signals) {
  absl::StatusOr<Found> found = WaitForNodes(replace, signals);
  if (!found.ok()) return found.status();
  Placement& placement = found->placement;
  Seats seats;
  for (const uint64_t node : found->nodes) {
    const bool is_vacant = std::ranges::find(placement.vacant, node) != placement.vacant.end();
    if (is_vacant && replace && !IsServed(cluster_.NodePlace(node))) {
      if (absl::Status status = ReplaceNode(node); !status.ok()) return status;
      placement.places[node] = node;
    } else if (is_vacant && options_.shape.range.is_given()) {
      continue;
    }
    seats.nodes.push_back(node);
    seats.places.push_back(placement.places[node]);
  }
  before_ = {seats.nodes.begin(), seats.nodes.end()};
  return seats;
}

absl::Status SeatFinder::ReplaceNode(uint64_t node) {
  absl::StatusOr<StartResult> started = StartNode(cluster_, node);
  if (!started.ok()) return started.status();
  Tell({{"event", "node-replaced"}, {"node", node}, {"pid", started->status.value("pid", 0)}},
       fmt::format("node {}: a new unreftd (pid {}) takes its slot", node,
                   started->status.value("pid", 0)));
  return absl::OkStatus();
}

}  // namespace unreft::cli
