// Leader: what the job of several nodes decides - membership, what is restored, what is committed,
// what is given up.
//
// Rules on state: it looks at the records of the meta store and at the newest report of every node,
// and starts the next missing step: a Txn, or a question to a node. Any completion only edits that
// state and runs the rules again. It keeps nothing that a successor could not read or be told: a
// new leader begins with the records and with empty reports, which every node sends to it at once.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "meta/job_store.h"
#include "recovery/restorable.h"
#include "smp/core/node_options.h"
#include "smp/job/board.h"
#include "smp/job/giving_up.h"
#include "smp/job/peers.h"
#include "smp/job/pins.h"
#include "smp/job/standstill.h"
#include "smp/job/world_layouts.h"

namespace unreft::smp {

// Single-threaded on the node's executor. Passes the fault points "leader.decision" and
// "leader.commit" when the Txn was applied and nobody knows of it yet.
class Leader {
 public:
  // `leadership`: our leader key.
  Leader(Executor& executor, meta::JobStore& store, Peers& peers, Log& log,
         const NodeOptions& options, meta::HeldKey leadership, FaultPoints* faults);
  ~Leader();

  // A node's whole state, answered by what is known of all ranks' registrations. Refused
  // (FailedPrecondition) when it is of a life that is not the one present in that slot.
  absl::StatusOr<ReportReply> OnReport(NodeSlot from, NodeReport report);

  // What was committed is given up by an explicit order that came to that node. Unavailable while
  // a decision is made, FailedPrecondition while ranks are connected and `force` is not given.
  // `done` is told the timeline that the next attempt opens.
  using FreshStartDone = absl::AnyInvocable<void(absl::StatusOr<Timeline>)>;
  void DeclareFreshStart(NodeSlot from, bool force, FreshStartDone done);

  // Keeps what is committed for somebody, or lets go of it; answered when that is written.
  using PinDone = absl::AnyInvocable<void(absl::StatusOr<PinReply>)>;
  void AskPins(PinRequest request, PinDone done);

  // The records changed, or time has passed. What rules read grows with the nodes, so they run at
  // their pace (smp/core/pace.h), for all that has come by then.
  void RunRules();

  // Versions that were given up by the deadline, which nothing else had ended.
  uint64_t deadlines_used() const { return deadlines_used_; }

  // How many more losses each group stands, and what would be restored, by the newest reports.
  ExposureReply Exposure() const;

 private:
  // Of what is tried again until it is done.
  static constexpr Duration kWarnEvery = std::chrono::seconds(10);

  struct Pending {
    TimerId deadline = TimerId::kNone;
    bool overdue = false;
  };

  void RunRulesNow();
  void StartNext();
  void CheckRegistrations();

  // Each returns whether it started something that must end before another rule may run.
  bool KeepView();
  bool SeedRecords();
  bool SeedCaptureMode(const std::vector<const NodeReport*>& reports);
  bool KeepPins();
  void RefusePins();
  bool DecideRestore();
  bool GiveUpFailed();
  bool AwaitsRanks();
  void KeepDeadlines(const std::set<Version>& under_way);
  bool CommitNewest();

  ViewRecord WantedView();
  void BeginGrace(NodeSlot slot);
  std::optional<std::vector<NodeSlot>> LostBeforeFirstView();
  std::optional<meta::Takeover> AssignSpare(ViewRecord& wanted);
  std::optional<meta::Takeover> GiveSlotBack(ViewRecord& wanted);
  bool FormFirstGroups(ViewRecord& wanted) const;
  std::vector<recovery::CodedGroup> GroupsOfStored() const;
  bool IsPresent(NodeSlot slot) const;
  // The report of a member that is not lost; null until it has come.
  const NodeReport* ReportOf(const unreft::Member& member) const;

  // Deciding.
  bool StartRound();
  void SetAskDeadline(bool wanted);
  bool ContinueRound();
  bool EndRound(const recovery::Restorable& restorable);
  bool EndRoundFresh();
  bool FailRound(TimelineRecord record, const absl::Status& status);
  std::string DescribeLost() const;
  std::string DescribeUnguarded() const;
  bool VerifyEverywhere(Version version, bool want_manifests);
  // A process of a node: what it found, the next one has not looked for.
  struct Life {
    NodeSlot slot;
    std::string incarnation;
    uint64_t session = 0;
    auto operator<=>(const Life&) const = default;
  };
  static Life LifeOf(NodeSlot slot, const NodeReport& report);
  void Verify(const Life& life, Version version, bool want_manifests);
  void OnVerified(const Life& life, Version version, VerifyReply reply);
  recovery::Holdings ClosedHoldings() const;
  std::vector<recovery::CodedGroup> RecordedGroupsOf(Version version) const;
  void OpenTimeline(TimelineRecord& record, Version parent) const;
  bool CaptureBegan() const;

  // Saying why nothing is committed.
  void WatchCommits();
  std::string WhatIsMissing() const;
  std::vector<std::string> MissingNodes() const;
  std::string MissingRanks() const;
  std::string RanksApart() const;
  std::string WaitedFor() const;
  std::string NameOf(NodeSlot slot) const;

  // Committing.
  std::set<Version> VersionsUnderWay() const;
  bool IsGivenUp(Version version) const;
  std::optional<std::string> FailureOf(Version version) const;
  std::optional<std::string> PassedBy(Version version) const;
  std::string NotCompletedInTime(Version version) const;
  // What the members that are not lost hold of the version, and their memories.
  std::map<NodeSlot, recovery::NodeHolding> HeldOf(Version version) const;
  recovery::Memories MemoriesLeft() const;
  bool WaitsForDecision(Version version) const;
  bool TryCommit(Version version);
  bool Commit(const recovery::Restorable& found);
  // Which can never be committed, as was found when all of it was there.
  bool Reject(Version version, std::string why);
  bool RejectMixed(Version version, const std::string& disagreement);
  AbandonRecord GivenUpThrough(Timeline timeline, const GivingUp& giving_up) const;
  Step NewestStep();

  bool Write(meta::JobChange change, const char* fault_point = nullptr);
  // Says what is about to be written, once until it is.
  void Announce(LogLevel level, const std::string& line);

  Executor& executor_;
  meta::JobStore& store_;
  Peers& peers_;
  Log& log_;
  const NodeOptions& options_;
  const meta::HeldKey leadership_;
  FaultPoints* faults_;

  Board board_;
  std::optional<Time> ran_rules_at_;
  TimerId rules_timer_ = TimerId::kNone;
  std::string seeded_;  // id of the store that is known to hold what all nodes remember
  std::map<NodeSlot, uint64_t> refused_;  // reports of lives that we do not see
  bool writing_ = false;
  absl::Status write_failure_;       // ok: the last write was taken, or another came between
  std::set<std::string> announced_;  // since the last write

  std::map<NodeSlot, TimerId> absences_;  // of members whose grace runs
  std::set<NodeSlot> overdue_;            // whose grace has run out

  // Of ranks that ask, before the round begins.
  struct Asked {
    uint64_t attempt = 0;
    uint64_t world = 0;
    std::map<uint64_t, AskingRank> ranks;
  };
  std::optional<Asked> WhoAsks() const;
  TimerId ask_deadline_ = TimerId::kNone;
  uint64_t ask_deadline_attempt_ = 0;
  bool ask_overdue_ = false;

  // Of the round under way.
  uint64_t verified_round_ = 0;
  std::set<std::pair<Version, Life>> verified_;
  std::set<std::pair<Version, Life>> verifying_;
  std::map<Version, ManifestsByRank> round_manifests_;  // of versions that are not committed
  std::set<Version> misfits_;                           // whose slabs do not fit together
  std::string last_problem_;

  PinClock pin_clock_;
  struct WaitingPin {
    PinRequest request;
    PinDone done;
  };
  std::deque<WaitingPin> pin_requests_;

  std::map<Version, Pending> pending_;
  std::map<Version, std::string> rejected_;
  StepPace pace_;
  std::optional<Time> gave_up_at_;
  TimerId give_up_timer_ = TimerId::kNone;
  uint64_t gave_up_in_vain_ = 0;  // times, since the last commit
  std::optional<Time> awaited_since_;  // ranks that are on their way back
  uint64_t deadlines_used_ = 0;
  Standstill standstill_;
  WorldLayouts layouts_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
