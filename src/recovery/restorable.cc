#include "recovery/restorable.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/format.h"

namespace unreft::recovery {
namespace {

using Nodes = std::map<NodeSlot, NodeHolding>;

const NodeHolding* Find(const Nodes& nodes, NodeSlot slot) {
  const auto it = nodes.find(slot);
  return it == nodes.end() ? nullptr : &it->second;
}

// What a slot's slab consists of, by anybody's copy of its manifests.
const NodeHolding::Replica* FindReplica(const Nodes& nodes, NodeSlot of) {
  for (const auto& [slot, holding] : nodes) {
    for (const NodeHolding::Replica& replica : holding.replicas) {
      if (replica.of == of) return &replica;
    }
  }
  return nullptr;
}

// Whether all of the slot's own slab is in its memory.
bool HasData(const Nodes& nodes, NodeSlot slot) {
  const NodeHolding* holding = Find(nodes, slot);
  if (holding == nullptr) return false;
  const NodeHolding::Replica* replica = FindReplica(nodes, slot);
  if (replica == nullptr) return true;
  const std::set<Rank> sealed(holding->sealed.begin(), holding->sealed.end());
  return std::all_of(replica->ranks.begin(), replica->ranks.end(),
                     [&](Rank rank) { return sealed.contains(rank); });
}

bool HasParity(const Nodes& nodes, NodeSlot slot) {
  const NodeHolding* holding = Find(nodes, slot);
  return holding != nullptr && holding->guarded;
}

// The fewest chunks that are left of any stripe in which member `lost` is a data source. A stripe's
// chunks lie as in ec::StripeLayout: the parities with members s .. s+m-1, data with the others.
uint32_t FewestChunksLeft(const Nodes& nodes, const CodedGroup& group, size_t lost) {
  const size_t n = group.slots.size();
  const size_t m = n - group.k;
  size_t fewest = n;
  for (size_t stripe = 0; stripe < n; ++stripe) {
    if ((lost + n - stripe) % n < m) continue;  // it holds a parity of this stripe
    size_t left = 0;
    for (size_t member = 0; member < n; ++member) {
      const bool is_parity = (member + n - stripe) % n < m;
      left += is_parity ? HasParity(nodes, group.slots[member])
                        : member != lost && HasData(nodes, group.slots[member]);
    }
    fewest = std::min(fewest, left);
  }
  return static_cast<uint32_t>(fewest);
}

std::string MissingSlabText(NodeSlot slot, const std::vector<Rank>& ranks, std::string_view why) {
  std::vector<uint64_t> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return fmt::format("rank{} {} of node {} ({})", numbers.size() == 1 ? "" : "s",
                     absl::StrJoin(numbers, ", "), slot, why);
}

// Adds the holders of slabs that are to be decoded; what cannot be is told.
void AddDecodable(const Nodes& nodes, const CodedGroup& group, std::set<Rank>& covered,
                  std::vector<SlabHolder>& holders, std::vector<std::string>& missing) {
  for (size_t member = 0; member < group.slots.size(); ++member) {
    const NodeSlot slot = group.slots[member];
    const NodeHolding::Replica* replica = FindReplica(nodes, slot);
    if (replica == nullptr || HasData(nodes, slot)) continue;
    std::vector<Rank> lost;
    for (const Rank rank : replica->ranks) {
      if (!covered.contains(rank)) lost.push_back(rank);
    }
    if (lost.empty()) continue;
    const uint32_t left = FewestChunksLeft(nodes, group, member);
    if (left < group.k) {
      missing.push_back(MissingSlabText(
          slot, lost, fmt::format("{} chunks of a stripe needed, {} left", group.k, left)));
      continue;
    }
    covered.insert(lost.begin(), lost.end());
    std::sort(lost.begin(), lost.end());
    holders.push_back({slot, std::move(lost), true});
  }
}

}  // namespace

std::optional<Restorable> FindHolders(Version version, const Nodes& nodes,
                                      std::span<const CodedGroup> groups, std::string* missing) {
  Restorable found;
  found.version = version;
  std::set<Rank> covered;
  for (const auto& [slot, holding] : nodes) {
    found.world = std::max(found.world, holding.world);
    for (const NodeHolding::Replica& replica : holding.replicas) {
      found.world = std::max(found.world, replica.world);
    }
    SlabHolder holder{slot, {}, false};
    for (const Rank rank : holding.sealed) {
      if (covered.insert(rank).second) holder.ranks.push_back(rank);
    }
    std::sort(holder.ranks.begin(), holder.ranks.end());
    if (!holder.ranks.empty()) found.holders.push_back(std::move(holder));
  }
  std::vector<std::string> gone;
  for (const CodedGroup& group : groups) AddDecodable(nodes, group, covered, found.holders, gone);
  std::stable_sort(found.holders.begin(), found.holders.end(),
                   [](const SlabHolder& a, const SlabHolder& b) { return a.slot < b.slot; });
  if (found.world != 0 && covered.size() == found.world) return found;
  if (missing != nullptr) {
    std::vector<uint64_t> ranks;
    for (uint64_t rank = 0; rank < found.world; ++rank) {
      if (!covered.contains(Rank{rank})) ranks.push_back(rank);
    }
    *missing = fmt::format("{} lacks rank{} {}{}{}", version, ranks.size() == 1 ? "" : "s",
                           absl::StrJoin(ranks, ", "), gone.empty() ? "" : ": ",
                           absl::StrJoin(gone, ", "));
  }
  return std::nullopt;
}

std::vector<Restorable> RestorableVersions(const Holdings& holdings,
                                           std::span<const CodedGroup> groups,
                                           const TimelineChain& chain) {
  std::vector<Restorable> versions;
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    if (!chain.IsLive(it->first)) continue;
    if (auto found = FindHolders(it->first, it->second, groups, nullptr)) {
      versions.push_back(*std::move(found));
    }
  }
  return versions;
}

std::string DescribeUnrestorable(const Holdings& holdings, std::span<const CodedGroup> groups,
                                 const TimelineChain& chain) {
  std::vector<std::string> parts;
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    if (!chain.IsLive(it->first)) continue;
    std::string missing;
    if (!FindHolders(it->first, it->second, groups, &missing)) parts.push_back(std::move(missing));
  }
  return absl::StrJoin(parts, "; ");
}

std::string DescribeUncovered(const Nodes& nodes, size_t copies) {
  for (const auto& [slot, holding] : nodes) {
    if (holding.sealed.empty()) continue;
    const std::set<Rank> sealed(holding.sealed.begin(), holding.sealed.end());
    size_t covering = 0;
    for (const auto& [other, held] : nodes) {
      for (const NodeHolding::Replica& replica : held.replicas) {
        covering += replica.of == slot &&
                    sealed == std::set<Rank>(replica.ranks.begin(), replica.ranks.end());
      }
    }
    if (covering >= copies) continue;
    return fmt::format("of node {}'s {} slabs {} nodes have copies of the manifests, needed {}",
                       slot, sealed.size(), covering, copies);
  }
  return "";
}

uint32_t LossesTolerated(const CodedGroup& group, const Nodes& nodes) {
  // Each stripe stands the loss of as many chunks as it has beyond k. A member that is lost takes
  // one chunk of every stripe with it.
  const size_t n = group.slots.size();
  const size_t m = n - group.k;
  size_t fewest = n;
  for (size_t stripe = 0; stripe < n; ++stripe) {
    size_t left = 0;
    for (size_t member = 0; member < n; ++member) {
      const bool is_parity = (member + n - stripe) % n < m;
      left +=
          is_parity ? HasParity(nodes, group.slots[member]) : HasData(nodes, group.slots[member]);
    }
    fewest = std::min(fewest, left);
  }
  return fewest < group.k ? 0 : static_cast<uint32_t>(fewest) - group.k;
}

}  // namespace unreft::recovery
