// Announcements: what the members of this node's group tell each other of a version: how large the
// slabs are that each has of it, and of which memory.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "meta/job_store.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/protect/guard_share.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Announcements {
 public:
  // `run_rules`: who could not be told of a version is to be told again. All references outlive
  // this.
  Announcements(NodeState& state, Peers& peers, const meta::JobRecords& job,
                absl::AnyInvocable<void()> run_rules);

  // The version is followed from now on, until it is forgotten.
  void Follow(Version version) { followed_[version]; }
  void Forget(Version version) { followed_.erase(version); }
  bool Follows(Version version) const { return followed_.contains(version); }
  // In order.
  std::vector<Version> Followed() const;

  // Aborted when it is of another memory than the view names in that slot.
  absl::Status Check(NodeSlot from, const AnnounceRequest& request) const;
  // Of a version that is followed.
  void Take(NodeSlot from, AnnounceRequest request);

  // The view may be another.
  void OnView();
  // Tells who has not been told this node's slabs of the version, as soon as they are known.
  void Tell(Version version, const GroupView& group);

  // What the memory that the view names in that slot has said; null before.
  const AnnounceRequest* SaidBy(Version version, NodeSlot slot) const;
  // Whether that memory has told of slabs that are not among the encoded ones.
  bool HasMore(Version version, NodeSlot slot, const MemberSlab& encoded) const;
  // Whether it has slabs, and is not lost.
  bool HasSlabsThere(Version version, NodeSlot slot) const;
  bool HaveAllSaid(Version version, const GroupView& group) const;
  // This node's share once all have said. InvalidArgument when their slabs do not go together.
  absl::StatusOr<GuardShare> ShareOf(Version version, const GroupView& group) const;

 private:
  // A process of a member: sessions count those of one memory.
  struct Life {
    std::string incarnation;
    uint64_t session = 0;
    friend bool operator==(const Life&, const Life&) = default;
  };
  static Life LifeOf(const PresenceRecord& presence) {
    return {presence.incarnation(), presence.session()};
  }
  struct Announced {
    std::map<NodeSlot, AnnounceRequest> said;  // by every member, this one included
    std::map<NodeSlot, Life> told;             // to which process of the member
    std::set<NodeSlot> telling;
  };

  std::optional<AnnounceRequest> OwnSlabs(Version version, bool asked) const;
  void TellMember(Version version, Announced& announced, NodeSlot member);

  NodeState& state_;
  Peers& peers_;
  const meta::JobRecords& job_;
  absl::AnyInvocable<void()> run_rules_;
  std::map<Version, Announced> followed_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
