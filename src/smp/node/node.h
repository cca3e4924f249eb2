// Node: the daemon's core. It wires the desks, hands them the trainers' frames, and is the node's
// side of the coordinator.
//
// No thread, clock, socket or global of its own: everything comes by NodeSeams, so that a whole
// cluster runs in one process on one seed.
//
// The room node wires the others, answers the command, and is the process: main.cc, daemon.h (the
// real back ends), spare.h (before there is a Node). It includes all rooms. Start here.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <memory>
#include <string>
#include <vector>

#include "base/channel.h"
#include "base/lifetime.h"
#include "base/lost_pages.h"
#include "smp/capture/capture_desk.h"
#include "smp/core/shortage_retry.h"
#include "smp/desk/lives_before.h"
#include "smp/desk/moved_ranks.h"
#include "smp/desk/node_state.h"
#include "smp/desk/protection_watch.h"
#include "smp/desk/scrubber.h"
#include "smp/desk/sessions.h"
#include "smp/job/coordinator.h"
#include "smp/job/member.h"
#include "smp/node/cluster_desk.h"
#include "smp/node/export_desk.h"
#include "smp/node/memory_desk.h"
#include "smp/node/restore_forecast.h"
#include "smp/node/settings_check.h"
#include "smp/protect/slab_server.h"
#include "smp/restore/restore_desk.h"

namespace unreft::smp {

// Single-threaded on its executor, constructed and destroyed in a turn of it (or before it runs,
// after it stopped).
class Node : private Coordinator::Node, private Sessions::Host {
 public:
  Node(NodeSeams seams, NodeOptions options);
  ~Node() override;

  // Adopts what an earlier process left. `done` runs once: ok, or why this node cannot serve
  // (then nothing was changed).
  void Start(RandomId boot_id, absl::AnyInvocable<void(absl::Status)> done);

  // A connection; whoever it is says so in its first frame, and comes again if Start is not done.
  void Accept(std::unique_ptr<Channel> channel, PeerIdentity peer);

  // After Start was done: this daemon is to end, or to be something else; in a turn of its own, and
  // perhaps again. `why` is ok when its slot has another memory and it serves no ranks, else why it
  // is refused, with nothing changed.
  void set_on_ended(absl::AnyInvocable<void(const absl::Status& why)> on_ended) {
    on_ended_ = std::move(on_ended);
  }

  // What writes this node's parts of durable copies, and outlives this; without one it writes none.
  // Before Start.
  void set_drain(DrainProcess* drain, ExportPolicy policy = {}) {
    drain_ = drain;
    export_policy_ = std::move(policy);
  }
  // Null until its memory is adopted.
  const ExportDesk* exports() const { return export_.get(); }

  // This daemon is about to end: the others are told at once, not by the end of its lease. `done`
  // once they can know, which may be never; it may be destroyed before.
  void Leave(absl::AnyInvocable<void()> done);

  // What is sealed there is not any more; what is being captured will not be sealed.
  void OnPagesLost(const LostPages& lost);

  // For tests and status.
  const NodeState& state() const { return state_; }
  NodeState& state() { return state_; }
  // Null until its memory is adopted.
  Member* member() { return member_; }

 private:
  void OpenRecord(RandomId boot_id);
  void OpenKept();
  void OnStarted(absl::Status status);
  // Brings the node's record and what it has kept together.
  absl::Status AdoptRecords();
  absl::Status AdoptMemory();
  absl::Status JoinCluster();
  void ReportSealedSlots();
  void OnEverCommittedRequest(const RankSession& session, EverCommittedRequest request);

  // Sessions::Host.
  void OnSessionBegun() override;
  void OnConnected(RankSession& session, Timeline follows) override;
  absl::Status OnTrainerFrame(RankSession& session, const Frame& frame) override;
  void OnAdminRequest(const AdminRequest& request, Sessions::AdminAnswer answer) override;
  void OnSessionEnding(RankSession& session) override;
  void OnSessionEnded() override;

  // Coordinator::Node.
  void CloseTimeline(absl::AnyInvocable<void()> done) override;
  void ReopenTimeline() override;
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override;
  std::vector<HeldSlab> Inventory() override;
  std::vector<RottenSlab> RottenSlabs() override;
  std::vector<RegisteredTrainer> Registrations() override { return capture_->Registrations(); }
  void OnRegistrationsChecked(const RegistrationCheck& check) override {
    capture_->OnRegistrationsChecked(check);
  }
  void OnDecision(const JobDecision& decision) override;
  void OnCommitted(Version version) override;
  void OnAbandoned(Version version, const std::string& reason) override;
  void OnCaptureFrom(Version first) override;
  void OnReplicasDisagree(const std::string& what) override;
  void OnPins(const PinRecord& pins) override;
  uint64_t RanksServed() override;
  uint64_t RanksTraining() override;
  uint64_t LivesRound() override;
  void OnAttemptOver(uint64_t round) override;
  bool LacksMemory() override;
  void OnObstacle(const std::string& what) override;
  void OnStanding(const Standing& standing) override;
  void OnRefused(const absl::Status& why) override;

  void AnswerOwn(const AdminRequest& request, Sessions::AdminAnswer answer);
  void EndIfOut();
  void ProvideLater();
  void End(const absl::Status& why);

  NodeState state_;
  DrainProcess* drain_ = nullptr;
  ExportPolicy export_policy_;
  std::unique_ptr<SettingsCheck> settings_;  // while it starts
  Member* member_ = nullptr;  // the coordinator, owned by state_; above the desks, which use it
  std::unique_ptr<SlabServer> server_;
  std::unique_ptr<Protection> protection_;
  Protector* protector_ = nullptr;  // which that is, where groups have parities
  std::unique_ptr<CaptureDesk> capture_;
  std::unique_ptr<RestoreDesk> restore_;
  std::unique_ptr<MovedRanks> moved_;
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<SlotVerifier> admin_verifier_;
  std::unique_ptr<MemoryDesk> memory_;
  std::unique_ptr<RestoreForecast> forecast_;
  std::unique_ptr<ClusterDesk> cluster_;
  std::unique_ptr<ExportDesk> export_;
  std::unique_ptr<ProtectionWatch> watch_;
  std::unique_ptr<ShortageRetry> disk_shortage_;
  Sessions sessions_{state_, *this};
  std::unique_ptr<LivesBefore> lives_before_;
  bool is_seeding_ = false;  // all but that its own meta store is yet to be written
  bool started_ = false;
  absl::AnyInvocable<void(absl::Status)> on_started_;
  absl::AnyInvocable<void(const absl::Status&)> on_ended_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
