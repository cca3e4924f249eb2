// ReportMaker: this node's whole state, as it is told to whoever leads.
#pragma once

#include <unreft/cluster.pb.h>

#include <cstdint>
#include <map>

#include "base/ids.h"
#include "smp/job/coordinator.h"
#include "smp/job/follower.h"
#include "smp/job/kept_records.h"
#include "smp/job/node_record.h"
#include "smp/job/own_versions.h"
#include "smp/job/protection.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class ReportMaker {
 public:
  // What is told of. All outlive this.
  struct Parts {
    const NodeRecord& record;
    const KeptRecords& kept;
    const Follower& follower;
    const OwnVersions& versions;
    Coordinator::Node& node;
    const Protection& protection;
    bool knows_copies = false;  // that are durable
  };

  explicit ReportMaker(const Parts& parts) : parts_(parts) {}

  // With the next number: of two reports the leader believes the one that was made later, in
  // whatever order they arrive.
  NodeReport Make();

 private:
  void AddRecord(NodeReport& report) const;
  std::map<Version, VersionHolding> Holdings() const;

  const Parts parts_;
  uint64_t last_number_ = 0;
};

}  // namespace unreft::smp
