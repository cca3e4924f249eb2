#include "meta/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/format.h"

namespace unreft::meta {
namespace {

// Slots in the order in which they are dealt out: domain by domain, the largest first.
std::vector<NodeSlot> DealingOrder(const std::vector<GroupCandidate>& nodes) {
  std::map<std::string, std::vector<NodeSlot>> domains;
  for (const GroupCandidate& node : nodes) {
    // The name of a node's own domain cannot be that of another's.
    const std::string name = node.failure_domain.empty()
                                 ? fmt::format("\x01{:020}", node.slot.value)
                                 : node.failure_domain;
    domains[name].push_back(node.slot);
  }
  std::vector<std::vector<NodeSlot>> by_size;
  for (auto& [name, slots] : domains) by_size.push_back(std::move(slots));
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::vector<NodeSlot> order;
  for (const auto& slots : by_size) order.insert(order.end(), slots.begin(), slots.end());
  return order;
}

// The nodes in so many groups with m parities.
std::vector<ec::Group> Deal(const std::vector<GroupCandidate>& nodes, size_t count, uint32_t m) {
  std::vector<ec::Group> groups(count);
  const std::vector<NodeSlot> order = DealingOrder(nodes);
  for (size_t i = 0; i < order.size(); ++i) groups[i % count].slots.push_back(order[i]);
  for (ec::Group& group : groups) {
    std::sort(group.slots.begin(), group.slots.end());
    group.k = static_cast<uint32_t>(group.slots.size()) - m;
  }
  return groups;
}

}  // namespace

std::string DescribeExposure(const std::vector<ec::Group>& groups,
                             const std::map<NodeSlot, std::string>& domain_of, uint32_t m) {
  std::string text;
  for (const ec::Group& group : groups) {
    std::map<std::string, uint64_t> members;
    for (const NodeSlot slot : group.slots) {
      const std::string& domain = domain_of.at(slot);
      if (!domain.empty()) ++members[domain];
    }
    for (const auto& [domain, count] : members) {
      if (count <= m) continue;
      text += fmt::format(
          "{}the group of slot {} has {} members in failure domain '{}', it stands "
          "the loss of {}",
          text.empty() ? "" : "; ", group.slots.front(), count, domain, m);
    }
  }
  return text;
}

ec::CodeShape ShapeFor(uint64_t nodes, uint32_t k, uint32_t m) {
  if (nodes >= uint64_t{k} + m) return {k, m};
  const auto left = static_cast<uint32_t>(nodes);
  const uint32_t parities = std::min(m, left - std::min<uint32_t>(left, 1));
  return {left - parities, parities};
}

absl::StatusOr<Grouping> FormGroups(std::vector<GroupCandidate> nodes, uint32_t k, uint32_t m) {
  if (k == 0 || nodes.size() < k + m) {
    return absl::InvalidArgumentError(
        fmt::format("a group of RS({},{}) needs {} nodes, found {}", k, m, k + m, nodes.size()));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a.slot < b.slot; });
  std::map<NodeSlot, std::string> domain_of;
  for (const GroupCandidate& node : nodes) {
    if (!domain_of.emplace(node.slot, node.failure_domain).second) {
      return absl::InvalidArgumentError(fmt::format("node slot {} is there twice", node.slot));
    }
  }
  const size_t count = nodes.size() / (k + m);
  Grouping grouping;
  grouping.groups = Deal(nodes, count, m);
  std::sort(grouping.groups.begin(), grouping.groups.end(),
            [](const auto& a, const auto& b) { return a.slots.front() < b.slots.front(); });
  grouping.exposure = DescribeExposure(grouping.groups, domain_of, m);
  return grouping;
}

}  // namespace unreft::meta
