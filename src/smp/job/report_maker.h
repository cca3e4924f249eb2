// ReportMaker: this node's whole state, as it is told to whoever leads.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>

#include "base/ids.h"
#include "smp/job/coordinator.h"
#include "smp/job/follower.h"
#include "smp/job/node_record.h"
#include "smp/job/own_versions.h"
#include "smp/job/protection.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class ReportMaker {
 public:
  // All outlive this.
  ReportMaker(const NodeRecord& record, const Follower& follower, const OwnVersions& versions,
              Coordinator::Node& node, const Protection& protection)
      : record_(record),
        follower_(follower),
        versions_(versions),
        node_(node),
        protection_(protection) {}

  // With the next number: of two reports the leader believes the one that was made later, in
  // whatever order they arrive.
  NodeReport Make();

 private:
  void AddRecord(NodeReport& report) const;
  std::map<Version, VersionHolding> Holdings() const;

  const NodeRecord& record_;
  const Follower& follower_;
  const OwnVersions& versions_;
  Coordinator::Node& node_;
  const Protection& protection_;
  uint64_t last_number_ = 0;
};

}  // namespace unreft::smp
