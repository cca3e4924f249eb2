// Member: a node of a job, as its desks see it (docs/design_notes.md, "One leader, told
// everything").
//
// It is the coordinator's face, and wires what is behind it. The node shows that it is present
// (seat.h), tells the leader its whole state whenever that changes (reporter.h), and carries out
// what the meta store says (follower.h). While it holds the leader key, it leads (leading.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/job_store.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/ever_committed.h"
#include "smp/job/kept_records.h"
#include "smp/job/leader_calls.h"
#include "smp/job/leading.h"
#include "smp/job/node_record.h"
#include "smp/job/peers.h"
#include "smp/job/protection.h"
#include "smp/job/refused_daemons.h"
#include "smp/job/reporter.h"
#include "smp/job/seat.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Member final : public Coordinator {
 public:
  struct Seams {
    Executor& executor;
    meta::Kv& kv;
    Transport& transport;
    Random& random;
    Log& log;
    FaultPoints* faults = nullptr;
  };

  Member(Seams seams, NodeRecord& record, KeptRecords& kept, Node& node,
         const NodeOptions& options);
  ~Member() override;

  // The job's durable copies, which the leader restores from when memory has nothing; null: there
  // are none, or not any more. To be said before Start.
  void set_copies(DurableCopies* copies) { leading_.set_copies(copies); }

  // Until then nothing is told to anybody, and nothing is to be asked for, or said of versions.
  // `protection` outlives this.
  void Start(Protection& protection);

  // The daemon is about to end. `done` once the meta store has been told; how long that takes is
  // not bounded.
  void Leave(absl::AnyInvocable<void()> done) { seat_.Leave(std::move(done)); }

  void AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) override;
  void CheckRegistrations() override { Report(); }
  void OnRanksChange() override { Report(); }
  void ReportClaimed(Version version, Rank rank) override;
  void ReportSealed(Version version, Rank rank) override;
  void ReportFailed(Version version, Rank rank, const std::string& reason) override;
  void AskEverCommitted(EverCommittedDone done) override { ever_asked_.Ask(std::move(done)); }
  void DeclareFreshStart(bool force, FreshStartDone done) override {
    calls_.DeclareFreshStart(force, std::move(done));
  }
  void AskRewind(const RewindRequest& request, RewindDone done) override {
    calls_.AskRewind(request, std::move(done));
  }
  void AskResize(const ResizeRequest& request, ResizeDone done) override {
    calls_.AskResize(request, std::move(done));
  }
  void AskPins(PinRequest request, PinDone done) override {
    calls_.AskPins(request, std::move(done));
  }
  // The protection's holdings are others than they were.
  void ReportProtection() { Report(); }

  // The leader's answer, or Unavailable when none answers.
  void AskExposure(LeaderCalls::ExposureDone done) { calls_.AskExposure(std::move(done)); }

  // Of all the times that this node has led.
  uint64_t deadlines_used() const override { return leading_.deadlines_used(); }
  // Of the node that leads; none of another.
  std::optional<ExposureReply> OwnExposure() const { return leading_.Exposure(); }

  Peers& peers() { return peers_; }
  const meta::JobState& job() const { return store_.state(); }
  // As this node has kept them and acts by them, whatever the store has lost.
  const meta::JobRecords& records() const { return kept_.records(); }
  bool store_ready() const { return store_.ready(); }
  absl::Status store_status() const { return store_.status(); }
  bool leads() const { return leading_.leads(); }

 private:
  struct Parts;

  void Follow();
  void FollowSeat();
  void LookWhose();
  bool HasStoreAnotherJob() const { return has_another_job_ && store_.ready(); }
  absl::Status MayOrder() const;
  void LeaveOtherJob();
  void Report();
  bool HaveAllSealed(Version version) const;
  RanksHere RanksNow() const;
  meta::HeldKey LeaderKey() const;
  std::optional<Reporter::Listener> FollowSeatAndFindLeader();

  Seams seams_;
  NodeRecord& record_;
  KeptRecords& kept_;
  Node& node_;
  const NodeOptions& options_;
  meta::JobStore store_;
  Seat seat_;
  RefusedDaemons refused_;
  Peers peers_;
  LeaderCalls calls_;
  Leading leading_;
  EverCommittedQuestions ever_asked_;
  std::unique_ptr<Parts> parts_;  // from Start on
  bool has_another_job_ = false;  // the store, than what lies here is of
};

}  // namespace unreft::smp
