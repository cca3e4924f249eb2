// Board: what the nodes of a job say, and what follows from it for each version. A node's report
// changes only what that node says, so that what a version costs the leader grows with the nodes.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "meta/job_store.h"
#include "recovery/restorable.h"
#include "smp/job/newest_steps.h"
#include "smp/job/report_parts.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// A rank that has gone on without the version: steps ascend, so it never captures it any more.
struct PassedRank {
  Rank rank;
  Step step;  // that it is at
};

// Of a version, by the newest reports of all nodes that name it.
struct Tally {
  uint64_t nodes = 0;
  std::map<NodeSlot, std::string> failures;     // as the nodes say them
  std::map<NodeSlot, PassedRank> passed;        // by nodes, also of those that hold nothing of it
  absl::flat_hash_map<Rank, uint64_t> sealed;   // on how many nodes
  std::map<uint64_t, uint64_t> worlds;          // how many sealed slabs name that world

  // Whether the slabs may be those of all ranks. That they are is found out by reading all reports.
  bool MayBeWhole() const;
};

// Of the process that has sent the report.
size_t HashOfLife(const NodeReport& report);

// Single-threaded. The reports of a large job do not fit into a processor's caches, so that what a
// report costs is above all what is read of the one before: of a version of which the same is said,
// nothing.
class Board {
 public:
  using Versions = google::protobuf::RepeatedPtrField<VersionHolding>;

  Board() = default;
  Board(Board&&) = default;
  Board& operator=(Board&&) = default;

  // The newest report of that node takes the place of the one before, whose memory is in `report`
  // then. InvalidArgument, and all stays as it is: what it says of versions cannot be believed.
  absl::Status Take(NodeSlot slot, ReportParts& report);
  // What a node that has reported holds is this, as of its report of that number; it was checked.
  void TakeVersions(NodeSlot slot, Versions versions, uint64_t number);

  // Whether the newest report of that node is of the same process and names the same registrations.
  bool HasSameRanks(NodeSlot slot, const NodeReport& report) const;

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
  // What is looked at of a holding whenever its node reports.
  struct Held {
    Held(const VersionHolding& holding, std::optional<size_t> hash);

    Version version;
    std::optional<size_t> hash;  // of its encoding; unset: that was not seen
    absl::InlinedVector<Rank, 8> sealed;
  };
  struct Node {
    NodeReport* report = nullptr;  // in reports_
    std::vector<Held> held;        // of the report's versions, in their order
    size_t ranks = 0;              // hash of its life and its registrations
    std::optional<Step> named;     // the newest step that it names in `steps_of_`
    Step passed;                   // that one of its ranks has, the farthest
  };
  struct GroupOfView {
    ec::Group group;
    std::vector<size_t> members;  // that are not lost, by their places in the view
    recovery::Memories memories;
  };
  // The groups of a version that are to be looked at; a group that was found unprotected is.
  class ToLookAt {
   public:
    explicit ToLookAt(size_t groups);  // all of them
    bool empty() const { return groups_.empty(); }
    size_t next() const { return groups_.back(); }
    void Add(size_t group);
    void PopNext();

   private:
    std::vector<size_t> groups_;
    std::vector<bool> is_in_;  // by group
  };

  // Of what the node has held, what `stays` names is left. `fresh`, which `held` is of, comes in
  // place of the rest.
  void Replace(NodeSlot slot, Node& node, const std::vector<bool>& stays, std::vector<Held> held,
               Versions& fresh);
  void NotePassed(NodeSlot slot, const Node& node);
  static void NotePassed(NodeSlot slot, const Node& node, Version version, Tally& tally);
  static std::optional<PassedRank> FindPassed(const Node& node, Version version);
  void NoteStep(Node& node);
  void Add(NodeSlot slot, const VersionHolding& holding);
  void Remove(NodeSlot slot, const VersionHolding& holding);
  void Follow(const meta::JobState& records) const;
  ToLookAt& GroupsToLookAt(Version version) const;
  void LookAgain(NodeSlot slot, Version version);

  std::map<NodeSlot, NodeReport> reports_;
  absl::flat_hash_map<NodeSlot, Node> nodes_;
  std::map<Version, Tally> versions_;

  Timeline steps_of_;
  StepCounts step_counts_;  // of what the nodes name in it

  // What was found of groups is remembered; it changes no answer.
  struct Followed {
    std::string store_id;
    meta::Revision revision;
    meta::Revision view;  // which a Txn of our own may have changed before that
    friend bool operator==(const Followed&, const Followed&) = default;
  };
  mutable Followed followed_;
  mutable std::vector<GroupOfView> groups_;
  mutable absl::flat_hash_map<NodeSlot, size_t> group_of_;
  mutable std::map<Version, ToLookAt> to_look_at_;
};

}  // namespace unreft::smp
