#include "recovery/version_choice.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <map>
#include <set>

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

std::vector<uint64_t> MissingRanks(const Holders& holders) {
  std::vector<uint64_t> missing;
  for (uint64_t rank = 0; rank < holders.world; ++rank) {
    if (!holders.ranks.contains(Rank{rank})) missing.push_back(rank);
  }
  return missing;
}

}  // namespace

std::vector<Version> WholeVersions(std::span<const SealedSlab> slabs, const TimelineChain& chain) {
  std::vector<Version> whole;
  for (const auto& [version, holders] : ByVersion(slabs, chain)) {
    if (MissingRanks(holders).empty()) whole.push_back(version);
  }
  return whole;
}

std::string DescribeMissing(std::span<const SealedSlab> slabs, const TimelineChain& chain) {
  std::vector<std::string> parts;
  for (const auto& [version, holders] : ByVersion(slabs, chain)) {
    const std::vector<uint64_t> missing = MissingRanks(holders);
    if (missing.empty()) continue;
    parts.push_back(fmt::format("{} lacks rank{} {}", version, missing.size() > 1 ? "s" : "",
                                absl::StrJoin(missing, ", ")));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace unreft::recovery
