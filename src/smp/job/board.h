// Board: what the nodes of a job say, and what follows from it for each version. A node's report
// changes only what that node says, so that what a version costs the leader grows with the nodes.
#pragma once

#include <unreft/cluster.pb.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "meta/job_store.h"
#include "recovery/restorable.h"
#include "smp/job/newest_steps.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// A rank that has gone on without the version: steps ascend, so it never captures it any more.
struct PassedRank {
  Rank rank;
  Step step;  // that it is at
};

// Of a version, by the newest reports of all nodes that name it.
struct Tally {
  std::set<NodeSlot> nodes;
  std::map<NodeSlot, std::string> failures;  // as the nodes say them
  std::map<NodeSlot, PassedRank> passed;     // by nodes, also of those that hold nothing of it
  std::map<Rank, uint64_t> sealed;           // on how many nodes
  std::map<uint64_t, uint64_t> worlds;       // how many sealed slabs name that world

  // Whether the slabs may be those of all ranks. That they are is found out by reading all reports.
  bool MayBeWhole() const;
};

// Single-threaded.
class Board {
 public:
  using Versions = google::protobuf::RepeatedPtrField<VersionHolding>;

  // The newest report of that node takes the place of the one before, which is returned.
  NodeReport Take(NodeSlot slot, NodeReport report);
  // What a node that has reported holds is this, as of its report of that number.
  void TakeVersions(NodeSlot slot, Versions versions, uint64_t number);

  const std::map<NodeSlot, NodeReport>& reports() const { return reports_; }
  // Null until one has come.
  const NodeReport* Of(NodeSlot slot) const;
  // Of every version that some report names.
  const std::map<Version, Tally>& versions() const { return versions_; }
  // How far the ranks have come in that timeline, as is believed of them (newest_steps.h).
  Step NewestStep(Timeline timeline);

  // Whether every group of the records' view protects the version as far as memories are left.
  // `roll` is of these records. Only groups are looked at that may be others than when this was
  // asked before.
  bool AreGroupsProtected(Version version, const meta::JobState& records,
                          const RollCall& roll) const;

 private:
  struct GroupOfView {
    ec::Group group;
    std::vector<size_t> members;  // that are not lost, by their places in the view
    recovery::Memories memories;
  };
  // The groups of a version that are to be looked at; a group that was found unprotected is.
  using ToLookAt = std::set<size_t>;

  // The report of that node is another; it said `before` of versions.
  void Retally(NodeSlot slot, const Versions& before, const NodeReport& newest);
  void Add(NodeSlot slot, const VersionHolding& holding);
  void Remove(NodeSlot slot, const VersionHolding& holding);
  void NoteStep(NodeSlot slot, const NodeReport& report);
  void Follow(const meta::JobState& records) const;
  ToLookAt& GroupsToLookAt(Version version) const;

  std::map<NodeSlot, NodeReport> reports_;
  std::map<Version, Tally> versions_;

  Timeline steps_of_;
  std::map<NodeSlot, std::optional<Step>> steps_;  // that the node names in it
  StepCounts step_counts_;                         // of these

  // What was found of groups is remembered; it changes no answer.
  struct Followed {
    std::string store_id;
    meta::Revision revision;
    meta::Revision view;  // which a Txn of our own may have changed before that
    friend bool operator==(const Followed&, const Followed&) = default;
  };
  mutable Followed followed_;
  mutable std::vector<GroupOfView> groups_;
  mutable std::map<NodeSlot, size_t> group_of_;
  mutable std::map<Version, ToLookAt> to_look_at_;
};

}  // namespace unreft::smp
