// Follower: carries out on this node what the job's records say: what is kept for somebody, a
// timeline that is being closed, a decision, a commit, versions given up.
//
// Records to steps, level-triggered: it looks at the records and at what was done of them, and does
// what is missing, whatever was lost on the way. A store that went back says what is over; that is
// not followed, since the leader will write what the nodes have kept.
#pragma once

#include <absl/functional/any_invocable.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/lifetime.h"
#include "meta/job_store.h"
#include "smp/job/coordinator.h"
#include "smp/job/kept_records.h"
#include "smp/job/node_record.h"
#include "smp/job/own_versions.h"
#include "smp/job/protection.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Follower {
 public:
  // Ranks of this node that ask for a decision in an attempt.
  struct Asking {
    Attempt attempt;
    uint64_t world = 0;
    std::vector<Asker> askers;
  };

  // `on_closed`: the timeline is closed for another round. All references outlive this.
  Follower(KeptRecords& kept, NodeRecord& record, OwnVersions& versions, Coordinator::Node& node,
           Protection& protection, absl::AnyInvocable<void()> on_closed);

  // The store's records were read, and may be others. They are kept before anything is done by
  // them; older ones are not followed.
  void Follow(const meta::JobState& job);

  // They wait until a decision is for all of them.
  void Ask(Asking asking) { asking_ = std::move(asking); }
  const std::optional<Asking>& asking() const { return asking_; }

  // The round whose decision was carried out last, and the one that the timeline is closed for; 0:
  // none.
  uint64_t round_applied() const { return round_applied_; }
  uint64_t round_closed() const { return round_closed_; }

 private:
  void FollowPins();
  void FollowTimeline();
  void FollowCommit();
  void FollowAbandoned();
  void Close(uint64_t round);
  void ApplyDecision(const DecisionRecord& record);
  void AdoptTimelines(bool took_part);

  KeptRecords& kept_;
  const meta::JobRecords& job_;  // as kept
  NodeRecord& record_;
  OwnVersions& versions_;
  Coordinator::Node& node_;
  Protection& protection_;
  absl::AnyInvocable<void()> on_closed_;

  // Of which store, too: another one may have written others at the same revision.
  std::optional<std::pair<std::string, meta::Revision>> pins_applied_;
  std::optional<Asking> asking_;
  uint64_t closings_ = 0;       // of which the last counts
  uint64_t round_closing_ = 0;  // the node was told to close for it
  uint64_t round_closed_ = 0;
  uint64_t round_applied_ = 0;
  uint64_t disagreement_applied_ = 0;  // of the timeline from which on all capture all
  Lifetime lifetime_;
};

}  // namespace unreft::smp
