// SourceHealth: which nodes are good sources of a version that is restored: whose slabs are lost,
// who is away, and who has failed lately.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "base/executor.h"
#include "base/ids.h"
#include "smp/job/peers.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class SourceHealth {
 public:
  // Of one node the one may be gone and the other there.
  enum class Kind { kData, kParity, kDecoded };

  // `avoided`: how long a source that failed is left out, if others will do. `lost`: slabs whose
  // memory is gone, each with its node. All references outlive this.
  SourceHealth(Executor& executor, const Peers& peers, Duration avoided,
               std::map<Rank, NodeSlot> lost);

  bool IsLost(Rank rank) const { return lost_.contains(rank); }
  bool HasLost(NodeSlot slot) const { return losers_.contains(slot); }
  bool IsOwn(NodeSlot slot) const { return slot == peers_.self(); }
  // It is away, or has failed lately.
  bool IsBad(NodeSlot slot, Kind kind) const;

  void Avoid(NodeSlot slot, Kind kind);

 private:
  Executor& executor_;
  const Peers& peers_;
  const Duration avoided_;
  const std::map<Rank, NodeSlot> lost_;
  std::set<NodeSlot> losers_;
  std::map<std::pair<NodeSlot, Kind>, Time> until_;  // of those that failed
};

}  // namespace unreft::smp
