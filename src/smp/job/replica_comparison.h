// Whether the ranks of a version hold replicas that are equal. Pure.
#pragma once

#include <map>
#include <string>

#include "base/ids.h"
#include "smp/job/coordinator.h"

namespace unreft::smp {

struct ReplicaComparison {
  bool complete = true;  // every replica was sampled
  std::string
      disagreement;  // names a shard, two ranks and their digests; empty when none was found
};

ReplicaComparison CompareReplicas(const std::map<Rank, ReplicaDigests>& digests);

}  // namespace unreft::smp
