#include "smp/job/replica_comparison.h"

#include <fmt/format.h>

#include "base/format.h"

namespace unreft::smp {

void ReplicaComparer::Add(Rank rank, std::string_view shard, std::optional<uint32_t> digest) {
  if (!digest) {
    result_.complete = false;
    return;
  }
  const auto [it, is_new] = first_.try_emplace(shard, rank, *digest);
  const auto& [first, expected] = it->second;
  if (is_new || expected == *digest || !result_.disagreement.empty()) return;
  result_.disagreement =
      fmt::format("replicas of {} differ: rank {} has digest {:08x}, rank {} has {:08x}", shard,
                  first, expected, rank, *digest);
}

ReplicaComparison CompareReplicas(const std::map<Rank, ReplicaDigests>& digests) {
  ReplicaComparer comparer;
  for (const auto& [rank, shards] : digests) {
    for (const auto& [shard, digest] : shards) comparer.Add(rank, shard, digest);
  }
  return comparer.result();
}

}  // namespace unreft::smp
