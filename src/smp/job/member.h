// Member: the node's side of the coordinator in a job of several nodes (docs/design_notes.md, "One
// leader, told everything").
//
// It shows that the node is present, tells the leader the node's whole state whenever that changes,
// and carries out what the meta store says: a timeline that is being closed, a decision, a commit,
// a version given up. All of it is level-triggered: Follow looks at the records and does what is
// missing, whatever was lost on the way. The member whose daemon holds the leader key is led by its
// own Leader.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/random.h"
#include "meta/job_store.h"
#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/ever_committed.h"
#include "smp/job/follower.h"
#include "smp/job/leader_calls.h"
#include "smp/job/leading.h"
#include "smp/job/node_record.h"
#include "smp/job/own_versions.h"
#include "smp/job/peers.h"
#include "smp/job/protection.h"
#include "smp/job/refused_daemons.h"
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

  Member(Seams seams, NodeRecord& record, Node& node, const NodeOptions& options);
  ~Member() override;

  // Until then nothing is told to anybody. `protection` outlives this.
  void Start(Protection& protection);

  // The daemon is about to end. `done` once the meta store has been told; how long that takes is
  // not bounded.
  void Leave(absl::AnyInvocable<void()> done) { seat_.Leave(std::move(done)); }

  void AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) override;
  void CheckRegistrations() override { Report(); }
  // Ranks have come or gone.
  void OnRanksChange() override { Report(); }
  void ReportClaimed(Version version, Rank rank) override;
  void ReportSealed(Version version, Rank rank, uint64_t world, ReplicaDigests digests) override;
  void ReportFailed(Version version, Rank rank, const std::string& reason) override;
  void AskEverCommitted(EverCommittedDone done) override { ever_asked_.Ask(std::move(done)); }
  void DeclareFreshStart(bool force, FreshStartDone done) override {
    calls_.DeclareFreshStart(force, std::move(done));
  }
  void AskPins(PinRequest request, PinDone done) override {
    calls_.AskPins(std::move(request), std::move(done));
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
  bool store_ready() const { return store_.ready(); }
  absl::Status store_status() const { return store_.status(); }
  bool leads() const { return leading_.leads(); }

 private:
  void Serve();
  void Follow();
  meta::HeldKey LeaderNow() const;
  void Report();
  void ReportLater(Duration delay);
  void SendReport();
  NodeReport MakeReport() const;
  // Whether the leader has to be asked again soon.
  bool OnReportReply(const NodeReport& report, const std::string& bytes);
  void OnVerify(const VerifyRequest& request,
                absl::AnyInvocable<void(absl::StatusOr<VerifyReply>)> done);
  void OnVerified(uint64_t round, Version version, const absl::Status& problem);
  absl::StatusOr<ManifestReply> OnManifests(const ManifestRequest& request);

  Seams seams_;
  NodeRecord& record_;
  Node& node_;
  const NodeOptions& options_;
  meta::JobStore store_;
  Seat seat_;
  RefusedDaemons refused_;
  Peers peers_;
  LeaderCalls calls_;
  Leading leading_;
  Protection* protection_ = nullptr;

  // From Start on.
  std::unique_ptr<OwnVersions> versions_;
  std::unique_ptr<Follower> follower_;
  // What is being read for a round's question: who asks again waits for the same reading, as one
  // that takes longer than a question waits would never be answered.
  struct Question {
    bool wants_manifests = false;
    absl::AnyInvocable<void(absl::StatusOr<VerifyReply>)> done;
  };
  std::map<std::pair<uint64_t, Version>, std::vector<Question>> verifying_;

  EverCommittedQuestions ever_asked_;

  bool report_wanted_ = false;
  bool report_running_ = false;
  TimerId report_soon_ = TimerId::kNone;
  std::optional<Time> reported_at_;
  uint64_t report_number_ = 0;      // the last, of reports and answers to Verify
  uint64_t report_sent_ = 0;        // of the last that was sent
  meta::HeldKey report_to_leader_;  // to which leader
  TimerId report_later_ = TimerId::kNone;  // though nothing changes until then
  Lifetime lifetime_;
};

}  // namespace unreft::smp
