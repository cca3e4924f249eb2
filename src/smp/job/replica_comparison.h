// Whether the ranks of a version hold replicas that are equal. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/ids.h"
#include "smp/job/coordinator.h"

namespace unreft::smp {

struct ReplicaComparison {
  bool complete = true;  // every replica was sampled
  std::string
      disagreement;  // names a shard, two ranks and their digests; empty when none was found
};

// Of one shard of one rank after another.
class ReplicaComparer {
 public:
  // Ranks ascend. None: it was not sampled. `shard` lives as long as this.
  void Add(Rank rank, std::string_view shard, std::optional<uint32_t> digest);
  const ReplicaComparison& result() const { return result_; }

 private:
  std::unordered_map<std::string_view, std::pair<Rank, uint32_t>> first_;
  ReplicaComparison result_;
};

ReplicaComparison CompareReplicas(const std::map<Rank, ReplicaDigests>& digests);

}  // namespace unreft::smp
