#include "recovery/version_choice.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <map>
#include <set>

#include "recovery/missing_ranks.h"

namespace unreft::recovery {
namespace {

struct Holders {
  uint64_t world = 0;
  std::set<Rank> ranks;
};

// Newest first.
std::map<Version, Holders, std::greater<>> ByVersion(std::span<const SealedSlab> slabs,
                                                     const TimelineChain& chain) {
  std::map<Version, Holders, std::greater<>> versions;
  for (const SealedSlab& slab : slabs) {
    if (!chain.IsLive(slab.version)) continue;
    Holders& holders = versions[slab.version];
    holders.world = std::max(holders.world, slab.world);
    holders.ranks.insert(slab.rank);
  }
  return versions;
}

}  // namespace

std::vector<Version> WholeVersions(std::span<const SealedSlab> slabs, const TimelineChain& chain) {
  std::vector<Version> whole;
  for (const auto& [version, holders] : ByVersion(slabs, chain)) {
    if (FindMissing(holders.ranks, holders.world).none()) whole.push_back(version);
  }
  return whole;
}

std::string DescribeMissing(std::span<const SealedSlab> slabs, const TimelineChain& chain) {
  std::vector<std::string> parts;
  for (const auto& [version, holders] : ByVersion(slabs, chain)) {
    const MissingRanks missing = FindMissing(holders.ranks, holders.world);
    if (missing.none()) continue;
    parts.push_back(
        fmt::format("{} lacks rank{} {}", version, missing.count > 1 ? "s" : "", missing.Text()));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace unreft::recovery
