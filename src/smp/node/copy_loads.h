// CopyLoads: brings the job's durable copies back, for the leader on this node: finds out which
// there are in the directory of its policy, and has every node load its part.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/durable_copies.h"
#include "smp/job/peers.h"
#include "smp/node/part_watch.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class CopyLoads final : public DurableCopies {
 public:
  // All outlive this.
  CopyLoads(NodeState& state, Peers& peers, DrainProcess& drain, std::string directory);
  ~CopyLoads() override;

  void Search(Found done) override;
  void Load(const DurableCopy& copy, std::map<NodeSlot, std::vector<Rank>> homes,
            Loaded done) override;
  void Cancel() override;

 private:
  void AskDrain();
  void EndSearch(absl::StatusOr<std::vector<DurableCopy>> found);
  void OnWatched(absl::Status status);

  NodeState& state_;
  Peers& peers_;
  DrainProcess& drain_;
  const std::string directory_;
  std::unique_ptr<PartWatch> watch_;  // of the load that is under way, or was last
  Loaded loaded_;
  Found found_;          // null: nobody searches
  uint64_t search_ = 0;  // its number
  Time search_until_{};
  TimerId timer_ = TimerId::kNone;  // of the search
  Lifetime lifetime_;
};

}  // namespace unreft::smp
