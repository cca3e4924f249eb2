// LocalCoordinator: the decisions of a job that runs on one node.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/giving_up.h"
#include "smp/job/layout_check.h"
#include "smp/job/newest_steps.h"
#include "smp/job/node_record.h"
#include "smp/job/pins.h"

namespace unreft::smp {

// Single-threaded on the node's executor. Passes the fault points "node.decision" and "node.commit"
// when the record is made and nobody knows of it yet.
class LocalCoordinator : public Coordinator {
 public:
  LocalCoordinator(Executor& executor, NodeRecord& record, Node& node, Log& log,
                   const NodeOptions& options, FaultPoints* faults);
  ~LocalCoordinator() override;

  void AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) override;
  void OnRanksChange() override {}
  void CheckRegistrations() override;
  void ReportClaimed(Version version, Rank rank) override;
  void ReportSealed(Version version, Rank rank, uint64_t world, ReplicaDigests digests) override;
  void ReportFailed(Version version, Rank rank, const std::string& reason) override;
  void AskEverCommitted(EverCommittedDone done) override;
  void DeclareFreshStart(bool force, FreshStartDone done) override;
  void AskPins(PinRequest request, PinDone done) override;
  uint64_t deadlines_used() const override { return deadlines_used_; }

  // What an earlier process kept for somebody is kept on. Once, when the node is ready for it.
  void Start();

 private:
  // Ranks that wait for one decision.
  struct Round {
    Attempt attempt;
    uint64_t world = 0;
    std::map<Rank, ProcessLife> asked;
    TimerId deadline = TimerId::kNone;
    bool deciding = false;
  };
  // A version of the newest timeline that is not committed yet.
  struct Pending {
    uint64_t world = 0;
    std::map<Rank, ReplicaDigests> sealed;
    std::optional<std::string> failure;  // why it is never committed
    TimerId deadline = TimerId::kNone;
  };

  void Deadline();
  void Decide();
  void Choose(absl::Status last_failure);
  void TryVersion(Version version);
  void Restore(Version version);
  void NothingWhole(const absl::Status& last_failure);
  void FreshStart();
  Timeline TimelineOn(Version parent);
  void EndRound(JobDecision decision);

  std::vector<recovery::SealedSlab> Slabs() const;
  absl::Status CheckLayouts(Version version);
  absl::Status CheckTrainers(const std::vector<RegisteredTrainer>& trainers);
  bool IsOfInterest(Version version) const;
  Pending& PendingOf(Version version);
  void Commit(Version version);
  void Fail(Version version, std::string reason);
  void GiveUpFailed();
  void Abandon(Version version, const std::string& reason);
  bool IsGivenUp(Version version) const;
  std::string DescribeUnsealed(Version version) const;
  void Forget(Version version);
  bool MustCompareReplicas() const;
  void SetPins(PinRecord pins, absl::AnyInvocable<void(absl::Status)> done);
  void KeepPins();

  Executor& executor_;
  NodeRecord& record_;
  Node& node_;
  Log& log_;
  const NodeOptions& options_;
  FaultPoints* faults_;

  std::optional<Round> round_;
  std::map<Rank, ProcessLife> decided_for_;  // who was told of the newest timeline
  std::map<Version, Pending> pending_;
  Step given_up_through_;  // in the newest timeline
  uint64_t deadlines_used_ = 0;
  LayoutCheck layouts_;
  PinClock pin_clock_;
  NewestSteps newest_steps_;  // that ranks have named in the newest timeline
  Lifetime lifetime_;
};

}  // namespace unreft::smp
