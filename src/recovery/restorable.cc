#include "recovery/restorable.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/format.h"
#include "ec/erasure_code.h"
#include "recovery/missing_ranks.h"

namespace unreft::recovery {
namespace {

using Nodes = std::map<NodeSlot, NodeHolding>;

const NodeHolding* Find(const Nodes& nodes, NodeSlot slot) {
  const auto it = nodes.find(slot);
  return it == nodes.end() ? nullptr : &it->second;
}

// The group that a complete guard was encoded in; none if it is of a release that did not say, or
// what it says is no code.
std::optional<ec::Group> GroupOfGuard(const NodeHolding& holding) {
  ec::Group group;
  for (const EncodedSlabs& member : holding.encoded) group.slots.push_back(member.slot);
  group.k = holding.data_chunks;
  if (!holding.guarded || group.k == 0 || group.k > group.slots.size()) return std::nullopt;
  const auto parities = static_cast<uint32_t>(group.slots.size()) - group.k;
  if (!ec::CheckShape({group.k, parities}).ok()) return std::nullopt;
  // Members of a group are ascending: nobody would take the record of another.
  const bool is_ascending =
      std::ranges::adjacent_find(group.slots, std::greater_equal<>()) == group.slots.end();
  if (!is_ascending) return std::nullopt;
  return group;
}

// The guards of a group that belong together are those of the coding that most members have. The
// others', and those of other groups, say nothing about these slabs.
void AddOthers(const ec::Group& group, const Nodes& nodes, std::set<NodeSlot>& others) {
  std::map<uint64_t, std::vector<NodeSlot>> members;  // by the coding that they have
  for (const NodeSlot slot : group.slots) {
    const NodeHolding* holding = Find(nodes, slot);
    if (holding == nullptr || !holding->guarded || others.contains(slot)) continue;
    if (GroupOfGuard(*holding).value_or(group) != group) {
      others.insert(slot);
    } else {
      members[holding->coding].push_back(slot);
    }
  }
  if (members.size() < 2) return;
  const auto most = std::max_element(
      members.begin(), members.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  for (auto it = members.begin(); it != members.end(); ++it) {
    if (it != most) others.insert(it->second.begin(), it->second.end());
  }
}

// The nodes without guards that do not belong to those of their group. Hardly ever is there one, so
// they are copied only then.
class NodesOfOneCoding {
 public:
  // Refers to `nodes`.
  NodesOfOneCoding(const Nodes& nodes, std::span<const ec::Group> groups) : nodes_(nodes) {
    std::set<NodeSlot> others;
    for (const ec::Group& group : groups) AddOthers(group, nodes, others);
    if (others.empty()) return;
    copy_ = nodes;
    for (const NodeSlot slot : others) {
      NodeHolding& holding = copy_->at(slot);
      holding.guarded = false;
      holding.descriptions.clear();
    }
  }
  const Nodes& operator*() const { return copy_ ? *copy_ : nodes_; }

 private:
  const Nodes& nodes_;
  std::optional<Nodes> copy_;
};

// What a slot's slab consists of, by any copy of its manifests that its group has.
const NodeHolding::Description* FindDescription(const Nodes& nodes, const ec::Group& group,
                                                NodeSlot of) {
  for (const NodeSlot slot : group.slots) {
    const NodeHolding* holding = Find(nodes, slot);
    if (holding == nullptr) continue;
    for (const NodeHolding::Description& description : holding->descriptions) {
      if (description.of == of) return &description;
    }
  }
  return nullptr;
}

// What was encoded of that member, by the guards' words; null where none says.
const EncodedSlabs* FindEncoded(const Nodes& nodes, const ec::Group& group, NodeSlot slot) {
  for (const NodeSlot member : group.slots) {
    const NodeHolding* holding = Find(nodes, member);
    if (holding == nullptr || !holding->guarded) continue;
    const auto found = std::ranges::find(holding->encoded, slot, &EncodedSlabs::slot);
    if (found != holding->encoded.end() && !found->memory.empty()) return &*found;
  }
  return nullptr;
}

// Whether all of the slot's own slab that was encoded is in its memory: another memory may have
// been given other ranks' slabs since.
bool HasData(const Nodes& nodes, const ec::Group& group, NodeSlot slot) {
  const NodeHolding* holding = Find(nodes, slot);
  if (holding == nullptr) return false;
  const std::set<Rank> sealed(holding->sealed.begin(), holding->sealed.end());
  const auto has_all = [&](const std::vector<Rank>& ranks) {
    return std::ranges::all_of(ranks, [&](Rank rank) { return sealed.contains(rank); });
  };
  if (const auto* description = FindDescription(nodes, group, slot)) {
    return has_all(description->ranks);
  }
  const EncodedSlabs* encoded = FindEncoded(nodes, group, slot);
  return encoded == nullptr || has_all(encoded->ranks);
}

bool HasParity(const Nodes& nodes, NodeSlot slot) {
  const NodeHolding* holding = Find(nodes, slot);
  return holding != nullptr && holding->guarded;
}

// Whether the member holds a parity of the stripe. A stripe's chunks lie as in ec::StripeLayout:
// the parities with members s .. s+m-1, data with the others.
bool IsParity(const ec::Group& group, size_t stripe, size_t member) {
  const size_t n = group.slots.size();
  return (member + n - stripe) % n < n - group.k;
}

size_t ChunksLeft(const Nodes& nodes, const ec::Group& group, size_t stripe) {
  size_t left = 0;
  for (size_t member = 0; member < group.slots.size(); ++member) {
    const NodeSlot slot = group.slots[member];
    left += IsParity(group, stripe, member) ? HasParity(nodes, slot) : HasData(nodes, group, slot);
  }
  return left;
}

// The fewest chunks that are left of any stripe in which member `lost` is a data source.
uint32_t FewestChunksLeft(const Nodes& nodes, const ec::Group& group, size_t lost) {
  size_t fewest = group.slots.size();
  for (size_t stripe = 0; stripe < group.slots.size(); ++stripe) {
    if (IsParity(group, stripe, lost)) continue;
    const size_t left = ChunksLeft(nodes, group, stripe);
    fewest = std::min(fewest, left - HasData(nodes, group, group.slots[lost]));
  }
  return static_cast<uint32_t>(fewest);
}

std::string MissingSlabText(NodeSlot slot, const std::vector<Rank>& ranks, std::string_view why) {
  std::vector<uint64_t> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return fmt::format("rank{} {} of node {} ({})", numbers.size() == 1 ? "" : "s",
                     absl::StrJoin(numbers, ", "), slot, why);
}

// Whether the memory that was encoded for that member is there no more, by the guards' words.
bool IsGone(const Nodes& nodes, const ec::Group& group, NodeSlot slot, const Memories& memories) {
  const auto memory = memories.find(slot);
  if (memory == memories.end()) return true;
  const EncodedSlabs* encoded = FindEncoded(nodes, group, slot);
  return encoded != nullptr && encoded->memory != memory->second;
}

// What of the group's protection is missing, though the memory that is to hold it is there.
std::string DescribeUnprotected(const Nodes& nodes, const ec::Group& group,
                                const Memories& memories) {
  const size_t n = group.slots.size();
  const size_t m = n - group.k;
  const bool is_idle = std::none_of(group.slots.begin(), group.slots.end(), [&](NodeSlot slot) {
    const NodeHolding* holding = Find(nodes, slot);
    return holding != nullptr && (holding->guarded || !holding->sealed.empty());
  });
  if (m == 0 || is_idle) return "";
  for (size_t member = 0; member < n; ++member) {
    const NodeSlot slot = group.slots[member];
    if (IsGone(nodes, group, slot, memories)) {
      // Nothing is asked of a memory that is gone; what the one in its place holds is in no guard.
      const NodeHolding* holding = Find(nodes, slot);
      if (holding == nullptr || holding->sealed.empty()) continue;
      return fmt::format(
          "node {} has {} slabs in no guard: they lie in another memory than was encoded", slot,
          holding->sealed.size());
    }
    if (!HasParity(nodes, slot)) return fmt::format("the guard of node {} is not complete", slot);
    const std::vector<Rank>& ranks = Find(nodes, slot)->sealed;
    const std::set<Rank> sealed(ranks.begin(), ranks.end());
    for (size_t i = 1; i <= m; ++i) {
      const NodeSlot next = group.slots[(member + i) % n];
      if (IsGone(nodes, group, next, memories)) continue;
      const NodeHolding* holding = Find(nodes, next);
      const bool covers = holding != nullptr &&
                          std::any_of(holding->descriptions.begin(), holding->descriptions.end(),
                                      [&](const auto& description) {
                                        return description.of == slot &&
                                               sealed == std::set<Rank>(description.ranks.begin(),
                                                                        description.ranks.end());
                                      });
      // A node without ranks may have been left out.
      if (covers || sealed.empty()) continue;
      return fmt::format("node {} has no copies of the manifests of node {}'s {} slabs", next, slot,
                         sealed.size());
    }
  }
  return "";
}

// A node with slabs that is in none of these groups: nothing protects them.
std::optional<NodeSlot> FindUngrouped(const Nodes& nodes, std::span<const ec::Group> groups) {
  std::set<NodeSlot> left;
  for (const auto& [slot, holding] : nodes) {
    if (!holding.sealed.empty()) left.insert(left.end(), slot);
  }
  for (const ec::Group& group : groups) {
    for (const NodeSlot slot : group.slots) left.erase(slot);
  }
  return left.empty() ? std::nullopt : std::optional(*left.begin());
}

// The ranks of the world that are not among the known ones, each once and ascending: what is said
// of others, or twice, is of no slab.
std::vector<Rank> NewRanks(const std::vector<Rank>& said, uint64_t world,
                           const std::set<Rank>& known) {
  const std::set<Rank> ranks(said.begin(), said.end());
  std::vector<Rank> found;
  for (const Rank rank : ranks) {
    if (rank.value < world && !known.contains(rank)) found.push_back(rank);
  }
  return found;
}

// Adds the holders of slabs that are to be decoded; what cannot be is told.
void AddDecodable(const Nodes& nodes, const ec::Group& group, uint64_t world,
                  std::set<Rank>& covered, std::vector<SlabHolder>& holders,
                  std::vector<std::string>& missing) {
  for (size_t member = 0; member < group.slots.size(); ++member) {
    const NodeSlot slot = group.slots[member];
    const NodeHolding::Description* description = FindDescription(nodes, group, slot);
    if (description == nullptr || HasData(nodes, group, slot)) continue;
    std::vector<Rank> lost = NewRanks(description->ranks, world, covered);
    if (lost.empty()) continue;
    const uint32_t left = FewestChunksLeft(nodes, group, member);
    if (left < group.k) {
      missing.push_back(MissingSlabText(
          slot, lost, fmt::format("{} chunks of a stripe needed, {} left", group.k, left)));
      continue;
    }
    covered.insert(lost.begin(), lost.end());
    holders.push_back({slot, std::move(lost), true});
  }
}

}  // namespace

std::vector<ec::Group> EncodedGroups(const Nodes& nodes, std::span<const ec::Group> recorded) {
  std::map<std::pair<std::vector<NodeSlot>, uint32_t>, size_t> named;  // by how many guards
  for (const auto& [slot, holding] : nodes) {
    if (const std::optional<ec::Group> group = GroupOfGuard(holding)) {
      ++named[{group->slots, group->k}];
    }
  }
  struct Named {
    size_t guards;
    bool is_recorded;
    ec::Group group;
  };
  std::set<std::pair<std::vector<NodeSlot>, uint32_t>> known;
  for (const ec::Group& group : recorded) known.emplace(group.slots, group.k);
  std::vector<Named> best_first;
  for (const auto& [name, guards] : named) {
    best_first.push_back({guards, known.contains(name), {name.first, name.second}});
  }
  std::ranges::stable_sort(best_first, [](const Named& a, const Named& b) {
    return std::pair(a.guards, a.is_recorded) > std::pair(b.guards, b.is_recorded);
  });
  std::vector<ec::Group> groups;
  std::set<NodeSlot> grouped;
  const auto add = [&](const ec::Group& group) {
    const auto is_grouped = [&](NodeSlot slot) { return grouped.contains(slot); };
    if (std::ranges::any_of(group.slots, is_grouped)) return;
    grouped.insert(group.slots.begin(), group.slots.end());
    groups.push_back(group);
  };
  for (const Named& next : best_first) add(next.group);
  for (const ec::Group& group : recorded) add(group);
  std::ranges::sort(groups, {}, [](const ec::Group& group) { return group.slots.front(); });
  return groups;
}

std::optional<Restorable> FindHolders(Version version, const Nodes& held,
                                      std::span<const ec::Group> recorded, std::string* missing) {
  std::vector<ec::Group> groups = EncodedGroups(held, recorded);
  const NodesOfOneCoding one_coding(held, groups);
  const Nodes& nodes = *one_coding;
  Restorable found;
  found.version = version;
  std::set<Rank> covered;
  for (const auto& [slot, holding] : nodes) {
    found.world = std::max(found.world, holding.world);
    for (const NodeHolding::Description& description : holding.descriptions) {
      found.world = std::max(found.world, description.world);
    }
  }
  for (const auto& [slot, holding] : nodes) {
    SlabHolder holder{slot, NewRanks(holding.sealed, found.world, covered), false};
    covered.insert(holder.ranks.begin(), holder.ranks.end());
    if (!holder.ranks.empty()) found.holders.push_back(std::move(holder));
  }
  std::vector<std::string> gone;
  for (const ec::Group& group : groups) {
    AddDecodable(nodes, group, found.world, covered, found.holders, gone);
  }
  std::stable_sort(found.holders.begin(), found.holders.end(),
                   [](const SlabHolder& a, const SlabHolder& b) { return a.slot < b.slot; });
  found.groups = std::move(groups);
  if (found.world != 0 && covered.size() == found.world) return found;
  if (missing != nullptr && found.world == 0) {
    *missing = fmt::format("nobody has anything of {}", version);
  } else if (missing != nullptr) {
    const MissingRanks ranks = FindMissing(covered, found.world);
    *missing = fmt::format("{} lacks rank{} {}{}{}", version, ranks.count == 1 ? "" : "s",
                           ranks.Text(), gone.empty() ? "" : ": ", absl::StrJoin(gone, ", "));
  }
  return std::nullopt;
}

std::vector<Restorable> RestorableVersions(const Holdings& holdings,
                                           std::span<const ec::Group> recorded,
                                           const TimelineChain& chain) {
  std::vector<Restorable> versions;
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    if (!chain.IsLive(it->first)) continue;
    if (auto found = FindHolders(it->first, it->second, recorded, nullptr)) {
      versions.push_back(*std::move(found));
    }
  }
  return versions;
}

std::string DescribeUnrestorable(const Holdings& holdings, std::span<const ec::Group> recorded,
                                 const TimelineChain& chain) {
  std::vector<std::string> parts;
  for (auto it = holdings.rbegin(); it != holdings.rend(); ++it) {
    if (!chain.IsLive(it->first)) continue;
    std::string missing;
    if (!FindHolders(it->first, it->second, recorded, &missing))
      parts.push_back(std::move(missing));
  }
  return absl::StrJoin(parts, "; ");
}

std::optional<Restorable> FindProtected(Version version, const Nodes& held,
                                        std::span<const ec::Group> groups, const Memories& memories,
                                        std::string* lacking) {
  const NodesOfOneCoding one_coding(held, groups);
  const Nodes& nodes = *one_coding;
  for (const ec::Group& group : groups) {
    std::string missing = DescribeUnprotected(nodes, group, memories);
    if (missing.empty()) continue;
    if (lacking != nullptr) *lacking = std::move(missing);
    return std::nullopt;
  }
  if (const std::optional<NodeSlot> slot = FindUngrouped(nodes, groups)) {
    if (lacking != nullptr) *lacking = fmt::format("node {} has slabs, and is in no group", *slot);
    return std::nullopt;
  }
  return FindHolders(version, nodes, groups, lacking);
}

bool IsProtected(const ec::Group& group, const Nodes& nodes, const Memories& memories) {
  const NodesOfOneCoding one_coding(nodes, {&group, 1});
  return DescribeUnprotected(*one_coding, group, memories).empty();
}

uint32_t LossesTolerated(const ec::Group& group, const Nodes& held) {
  const NodesOfOneCoding one_coding(held, {&group, 1});
  const Nodes& nodes = *one_coding;
  // Each stripe stands the loss of as many chunks as it has beyond k. A member that is lost takes
  // one chunk of every stripe with it.
  size_t fewest = group.slots.size();
  for (size_t stripe = 0; stripe < group.slots.size(); ++stripe) {
    fewest = std::min(fewest, ChunksLeft(nodes, group, stripe));
  }
  return fewest < group.k ? 0 : static_cast<uint32_t>(fewest) - group.k;
}

}  // namespace unreft::recovery
