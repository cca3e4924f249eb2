#include "smp/job/replica_comparison.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace unreft::smp {

ReplicaComparison CompareReplicas(const std::map<Rank, ReplicaDigests>& digests) {
  ReplicaComparison result;
  std::map<std::string_view, std::pair<Rank, uint32_t>> first;
  for (const auto& [rank, shards] : digests) {
    for (const auto& [shard, digest] : shards) {
      if (!digest) {
        result.complete = false;
        continue;
      }
      const auto [it, is_new] = first.try_emplace(shard, rank, *digest);
      if (is_new || it->second.second == *digest || !result.disagreement.empty()) continue;
      result.disagreement =
          fmt::format("replicas of {} differ: rank {} has digest {:08x}, rank {} has {:08x}", shard,
                      it->second.first, it->second.second, rank, *digest);
    }
  }
  return result;
}

}  // namespace unreft::smp
