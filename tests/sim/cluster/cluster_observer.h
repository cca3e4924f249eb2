// ClusterObserver: what the daemons of a simulated cluster say the job has decided, seen from
// outside after every event.
//
// It fails the trace when
//   * two daemons read different decisions of one round, or records go back,
//   * a node's memory forgets a timeline or a commit,
//   * an empty memory has a slot before the one that it takes the place of is lost,
//   * a version is committed that its groups do not protect (docs/protocol.md, rule 17): see
//   GroupChecker;
//     where some memories were hit meanwhile, the others are looked at (CheckRest),
//   * a decision names holders that do not hold or not all ranks, a version of a dead timeline, or
//     passes over a newer one that was whole (docs/protocol.md, rule 21), or names an older one
//     than was committed, or none, although its groups have lost no more than they stand (History),
//     or although it can be had from the memories that are left (CanBeHad),
//   * the job begins anew, or is said to be lost, or restores another durable copy, though there is
//     one of a version on its timelines (docs/protocol.md, rule 34),
//   * an attempt is refused for its number of ranks.
// Single-threaded.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "smp/job/member.h"
#include "tests/sim/cluster/abandoned_steps.h"
#include "tests/sim/cluster/durable_shelf.h"
#include "tests/sim/cluster/group_checker.h"
#include "tests/sim/cluster/store_lives.h"
#include "tests/sim/daemon_process.h"

namespace unreft::sim {

// The version that would be restored now; its guards may be made anew until it is protected.
struct Standing {
  Version version;
  bool is_protected = false;
  friend bool operator==(const Standing&, const Standing&) = default;
};

class ClusterObserver {
 public:
  // `places`: all machines, by the numbers that their memory is named by. The first `nodes` are
  // the nodes' at first.
  ClusterObserver(World& world, std::vector<Machine*> places, uint64_t nodes);

  // Whether a store of that id is no more.
  using IsOver = std::function<bool(const std::string& store_id)>;
  void set_is_over(IsOver is_over) { is_over_ = std::move(is_over); }

  // The durable copies that the daemons can look for. Outlives this.
  void set_shelf(DurableShelf* shelf) { shelf_ = shelf; }

  // Of that daemon.
  void AfterEvent(DaemonProcess& daemon);

  // By the newest view: whether the slot is in no group, and whether it is lost.
  bool IsLeftOut(NodeSlot slot) const;
  bool IsLost(NodeSlot slot) const;
  // Who is which node by the newest view.
  const MachinesBySlot& machines() const { return machines_; }
  std::optional<NodeSlot> SlotOf(const Machine& machine) const;

  // That node's memory goes.
  void OnDestroyed(NodeSlot slot);
  // A bit of that version has turned on the node, in a slot or a guard.
  void OnFlipped(NodeSlot slot, Version version);
  // The meta store has that record.
  void OnRecord(const std::string& name, meta::Revision modified, const std::string& value) {
    store_lives_.OnRecord(name, modified, value);
  }
  // The meta store comes back as another one, or as it was. Its id may be one that it had before,
  // if nobody is left who remembers.
  void OnStoreChanged() {
    store_lives_.Next();
    is_store_new_ = true;
    stale_views_ = views_read_;
    standing_.reset();
  }
  // What was decided or committed last was found to be protected.
  bool is_protected() const { return is_protected_; }
  // The version that is committed and was seen protected, or that was decided and is yet to be.
  std::optional<Standing> standing() const { return standing_; }
  std::optional<Version> decided() const { return decided_; }

  uint64_t commits_checked() const { return commits_checked_; }
  // Of which some node's memory was hit meanwhile: what the others have was looked at.
  uint64_t commits_checked_in_part() const { return commits_checked_in_part_; }
  // A fresh start was declared after it.
  bool IsGivenUp(Timeline timeline) const {
    return !fresh_starts_.empty() && timeline < *fresh_starts_.rbegin();
  }
  uint64_t decisions() const { return decisions_; }
  // Decisions that restore nothing and say why.
  uint64_t failures() const { return failures_; }
  uint64_t views() const { return views_; }
  // Holders of decided versions whose slabs had to be decoded.
  uint64_t slabs_lost() const { return slabs_lost_; }
  // Of those, the ones of nodes whose memory was there and had rotted.
  uint64_t slabs_rotted() const { return slabs_rotted_; }
  // Decisions of a version that another number of ranks has saved.
  uint64_t reshapes() const { return reshapes_; }
  // Nodes that are on another machine than before.
  uint64_t takeovers() const { return takeovers_; }
  // Machines that are the same node as before by another memory, since the last call.
  std::vector<const Machine*> TakeRenewed() { return std::exchange(renewed_, {}); }
  // Slots that went back to the machine that they were on first.
  uint64_t returns() const { return returns_; }
  // Versions that were decided and never committed, and were protected later.
  uint64_t guarded_anew() const { return guarded_anew_; }
  // Decided versions whose lost slabs were rebuilt and guarded again before the next commit.
  uint64_t losses_made_good() const { return losses_made_good_; }
  // Decisions for a version out of a durable copy.
  uint64_t copies_restored() const { return copies_restored_; }

 private:
  using Groups = google::protobuf::RepeatedPtrField<Group>;

  // What one life of the meta store has said: the numbers of another one begin again.
  struct StoreSeen {
    std::map<uint64_t, std::string> rounds;  // what each round decided
    std::map<uint64_t, Duration> closing;    // and when it was first seen to close its timeline
    std::map<uint64_t, Version> ordered;     // what an operator had ordered by then
    std::map<uint64_t, std::string> views;   // by number
    meta::Revision newest_commit;
  };

  void Remember(NodeSlot slot, const Machine& machine, const smp::NodeRecord& record);
  bool IsStale(const Machine& machine, const meta::JobState& job);
  void Look(NodeSlot slot, const meta::JobState& job, bool is_stale);
  void OnView(NodeSlot slot, const meta::Stored<ViewRecord>& view);
  void CheckNewMemories(const ViewRecord& before, const ViewRecord& now) const;
  void FollowPlaces();
  void OnDecision(NodeSlot slot, const DecisionRecord& decision, uint64_t life);
  void OnFailure(const smp::JobDecision& job, const DecisionRecord& decision, bool is_step_wanted);
  // That the job may go on with.
  std::optional<Version> NewestCopy(std::optional<Step> at_or_before) const;
  Duration ClosedAt(uint64_t round) const;
  std::optional<Version> OrderedIn(uint64_t round, uint64_t life) const;
  void OnCommit(const meta::JobState& job, bool is_stale);
  std::set<NodeSlot> HitBefore(Version version, const CommitRecord& commit,
                               const ViewRecord& view) const;
  void CheckCommit(Version version, const CommitRecord& commit, const ViewRecord& view);
  void OnFreshStart(Version opened);
  void ProveDecided();
  bool IsForgotten(Version committed) const;
  Duration SafeAt(Version version) const;
  bool IsThere(Version version, Duration closed) const;
  bool IsExcused(Version committed, Duration closed);
  bool IsBeyondBudget(Version version, Duration closed) const;
  std::set<NodeSlot> GoneSince(Version version, Duration since, Duration closed) const;
  const Groups& GroupsOf(Version version) const;
  bool HasAny(Version version, const std::set<NodeSlot>& gone) const;
  bool IsHeld(Version version, Rank rank, const CommitRecord& commit) const;
  bool IsIdle(Version version, const Group& group, uint64_t world) const;
  void CheckPassedOver(Version decided, std::optional<Step> at_or_before, Duration closed);
  void CheckHolders(const DecisionRecord& decision, Duration closed);

  World& world_;
  const std::vector<Machine*> places_;
  DurableShelf* shelf_ = nullptr;
  IsOver is_over_;
  MachinesBySlot machines_;
  std::map<NodeSlot, std::string> named_now_;  // by the view: whose incarnation
  std::vector<const Machine*> renewed_;
  std::map<std::string, Machine*> machines_seen_;  // where a memory was, by incarnation
  // The store of each and the revision of its newest record.
  std::map<const Machine*, std::pair<std::string, meta::Revision>> seen_;
  // By the machines' daemons: the store's id and the view; and those of before the store changed.
  std::map<const Machine*, std::pair<std::string, std::string>> views_read_;
  std::map<const Machine*, std::pair<std::string, std::string>> stale_views_;
  StoreLives store_lives_;
  std::map<uint64_t, StoreSeen> stores_;  // by life
  // Whether what was committed could be had when a round was first seen to close its timeline.
  std::map<std::pair<Version, Duration>, bool> had_at_closing_;
  bool is_store_new_ = false;  // and nothing was committed in it yet
  // The newest timeline and commit in each node's memory, and in any that was one.
  using Known = std::pair<Timeline, Version>;
  std::map<NodeSlot, Known> remembered_;
  std::map<RandomId, Known> memories_;         // by incarnation
  std::map<NodeSlot, std::string> memory_of_;  // the incarnation that each node has now
  ViewRecord view_;                            // the newest
  std::set<std::string> named_;                // incarnations, by any view
  std::map<Timeline, Groups> formed_;          // the newest that were seen with it
  std::map<Version, Groups> encoded_in_;       // what was committed or decided
  // Of any store: one that went back says what is over.
  std::set<std::string> decisions_seen_;
  std::set<std::string> commits_seen_;
  std::optional<Version> decided_;
  uint64_t decided_in_ = 0;  // the life of the store with the newest of them
  std::optional<Standing> standing_;
  std::set<Timeline> fresh_starts_;
  AbandonedSteps abandoned_;
  // And when, the last time. What happens while a decision is made may come too late for it.
  using Times = std::map<NodeSlot, Duration>;
  Times destroyed_;
  Times replaced_;  // by another memory, in the view: the old one may be there still
  Times lost_;      // seen so
  std::map<Version, Times> rotted_;  // nodes on which some bit of the version has turned
  // When a version was last seen protected, or else was found to be restorable by a decision.
  std::map<Version, Duration> proven_;
  std::map<Version, Duration> verified_;
  Duration prove_next_{};
  bool is_protected_ = false;
  std::optional<Duration> guarded_since_;  // what was decided, as far as was seen
  bool is_rebuilt_ = false;                // what was decided last, of which slabs were lost
  uint64_t commits_checked_ = 0;
  uint64_t commits_checked_in_part_ = 0;
  uint64_t decisions_ = 0;
  uint64_t failures_ = 0;
  uint64_t views_ = 0;
  uint64_t slabs_lost_ = 0;
  uint64_t slabs_rotted_ = 0;
  uint64_t reshapes_ = 0;
  uint64_t takeovers_ = 0;
  uint64_t returns_ = 0;
  uint64_t guarded_anew_ = 0;
  uint64_t losses_made_good_ = 0;
  uint64_t copies_restored_ = 0;
};

}  // namespace unreft::sim
