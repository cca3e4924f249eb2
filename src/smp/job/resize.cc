#include "smp/job/resize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

template <typename... Args>
absl::Status Wrong(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError("resize: " + fmt::format(format, std::forward<Args>(args)...));
}

absl::Status CheckOrder(const ResizeOrder& order, const std::set<uint64_t>& without,
                        uint64_t nodes) {
  if (!order.has_nodes() && without.empty()) {
    return Wrong("needed a number of nodes, or nodes to leave out, found neither");
  }
  const auto stranger = without.lower_bound(nodes);
  if (stranger != without.end()) {
    return Wrong("node {} cannot be left out: needed one of 0 to {}, the nodes of the job",
                 *stranger, nodes - 1);
  }
  if (without.size() == nodes) {
    return Wrong("all {} nodes of the job are left out: needed at least 1 to run on, found 0",
                 nodes);
  }
  if (!order.has_nodes()) return absl::OkStatus();
  if (order.nodes() == 0 || order.nodes() > nodes) {
    return Wrong("{} nodes: needed 1 to {}, the most that the job can have", order.nodes(), nodes);
  }
  const uint64_t left = nodes - without.size();
  if (order.nodes() <= left) return absl::OkStatus();
  return Wrong("{} nodes without node {}: needed {} others, found {} of the job's {}",
               order.nodes(), fmt::join(without, ", "), order.nodes(), left, nodes);
}

bool IsMet(const ResizeOrder& order, const google::protobuf::RepeatedField<uint64_t>& running) {
  const auto is_out = [&](uint64_t slot) {
    return std::ranges::find(order.without(), slot) != order.without().end();
  };
  if (running.empty() || std::ranges::any_of(running, is_out)) return false;
  return !order.has_nodes() || static_cast<uint64_t>(running.size()) == order.nodes();
}

}  // namespace

ResizeReply DescribeResize(const meta::JobState& records, const RollCall& roll) {
  ResizeReply reply;
  for (const RollCall::Entry& entry : roll.members()) {
    if (entry.member->lost()) reply.add_lost(entry.slot.value);
  }
  for (const auto& [slot, report] : roll.told()) {
    reply.add_there(slot.value);
    if (report->ranks() > 0) reply.add_running(slot.value);
  }
  const CommitRecord& commit = records.commit.value;
  SetVersion(VersionOf(commit), reply);
  reply.set_world(commit.world());
  const TimelineRecord& timeline = records.timeline.value;
  if (!timeline.has_resize()) return reply;
  *reply.mutable_order() = timeline.resize();
  reply.set_met(IsMet(timeline.resize(), reply.running()));
  return reply;
}

absl::StatusOr<meta::JobChange> OrderResize(const ResizeRequest& request,
                                            const meta::JobState& records,
                                            const NodeOptions& options) {
  if (options.nodes < 2) {
    return absl::FailedPreconditionError(fmt::format(
        "resize: a job of several nodes is needed, job {} has {}", options.job, options.nodes));
  }
  TimelineRecord timeline = records.timeline.value;
  if (request.cancel()) {
    if (!timeline.has_resize()) return absl::NotFoundError("resize: nothing is ordered");
    timeline.clear_resize();
    return meta::JobChange{.timeline = std::move(timeline)};
  }
  const std::set<uint64_t> without(request.order().without().begin(),
                                   request.order().without().end());
  if (absl::Status status = CheckOrder(request.order(), without, options.nodes); !status.ok()) {
    return status;
  }
  ResizeOrder& order = *timeline.mutable_resize();
  order = request.order();
  order.mutable_without()->Assign(without.begin(), without.end());
  return meta::JobChange{.timeline = std::move(timeline)};
}

std::string DescribeOrder(const TimelineRecord& timeline) {
  if (!timeline.has_resize()) return "the job runs on those nodes again that its launcher finds";
  const ResizeOrder& order = timeline.resize();
  std::string text = "the job is to run";
  if (order.has_nodes()) text += fmt::format(" on {} nodes", order.nodes());
  if (order.without().empty()) return text;
  return text + fmt::format("{} without node {}", order.has_nodes() ? "," : "",
                            fmt::join(order.without(), ", "));
}

std::set<NodeSlot> LeftOutByOrder(const TimelineRecord& timeline, const std::set<NodeSlot>& there,
                                  const std::set<NodeSlot>& asking) {
  std::set<NodeSlot> out;
  if (!timeline.has_resize()) return out;
  const ResizeOrder& order = timeline.resize();
  for (const uint64_t slot : order.without()) {
    if (there.contains(NodeSlot{slot}) && !asking.contains(NodeSlot{slot})) {
      out.insert(NodeSlot{slot});
    }
  }
  if (!order.has_nodes()) return out;
  for (auto slot = there.rbegin(); slot != there.rend(); ++slot) {
    if (there.size() - out.size() <= order.nodes()) break;
    if (!asking.contains(*slot)) out.insert(*slot);
  }
  return out;
}

}  // namespace unreft::smp
