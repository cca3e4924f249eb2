// OwnVersions: the versions that are under way on this node, and how far its ranks have come.
//
// A version is under way here from a rank's first word of it until it is committed, or given up on
// this node: because the job has given it up, because it can be of no use any more, or because too
// many others are under way. Whoever names one is told whether it is.
#pragma once

#include <map>
#include <string>

#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/job/coordinator.h"
#include "smp/job/newest_steps.h"
#include "smp/job/node_record.h"
#include "smp/job/protection.h"

namespace unreft::smp {

// Single-threaded on the node's executor. All references outlive this.
class OwnVersions {
 public:
  OwnVersions(const NodeRecord& record, const meta::JobRecords& job, Coordinator::Node& node,
              Protection& protection)
      : record_(record), job_(job), node_(node), protection_(protection) {}

  // A rank of this node has begun to capture the version, has sealed its slab, or has failed to.
  // Each returns whether the version is under way now.
  bool OnClaimed(Version version, Rank rank);
  bool OnSealed(Version version, Rank rank);
  bool OnFailed(Version version, Rank rank, const std::string& reason);

  // The timelines are others, and those of the versions under way are over. The ranks go on behind
  // `begun`.
  void OnTimeline(Step begun);
  // The version is committed. Older ones are given up, but for those that are pinned.
  void OnCommitted(Version version);
  // The job gives up others than it did: so does this node, also what it holds of an earlier
  // process.
  void OnAbandoned();

  // Of the newest timeline, newer than what is committed, and not given up by the job.
  bool MayBeCommitted(Version version) const {
    return IsOfInterest(version) && !IsAbandoned(version);
  }
  // Why each version under way can not become whole, as far as the ranks have said; else empty.
  const std::map<Version, std::string>& failures() const { return failures_; }
  // That the ranks have named in the newest timeline.
  Step newest_step() const { return newest_steps_.Believed(); }

 private:
  bool IsOfInterest(Version version) const;
  bool IsAbandoned(Version version) const;
  bool Begin(Version version);
  void MakeRoomFor(Version version);
  void Abandon(Version version, const std::string& reason);

  const NodeRecord& record_;
  const meta::JobRecords& job_;
  Coordinator::Node& node_;
  Protection& protection_;
  std::map<Version, std::string> failures_;
  NewestSteps newest_steps_;
};

}  // namespace unreft::smp
