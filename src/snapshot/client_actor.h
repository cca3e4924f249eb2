// ClientActor: the whole client of one rank as one actor: session, capture and restore.
//
//   Start ─▶ RestoreBegin ─▶ RestoreRead ... ─▶ Register ─▶ [ Fence, Snapshot ] ...
//
// All of the world comes by constructor, so that a simulation runs it against a daemon in virtual
// time; snapshot::Client runs it on a thread of its own for a real trainer.
//
// Single-threaded on its executor, and destroyed in a turn or when no turn runs any more, except
// where a method says that it is for the training thread. Every callback runs once, never inline,
// in a turn, at the latest at its deadline, and not at all when the actor is destroyed first.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/channel.h"
#include "base/executor.h"
#include "base/lifetime.h"
#include "base/random.h"
#include "base/segment_store.h"
#include "base/session_frames.h"
#include "layout/tensor_table.h"
#include "snapshot/bound_tensor.h"
#include "snapshot/capture.h"
#include "snapshot/client_options.h"
#include "snapshot/device_copier.h"
#include "snapshot/given_tensors.h"
#include "snapshot/plan_follower.h"
#include "snapshot/protection_board.h"
#include "snapshot/restorer.h"
#include "snapshot/session.h"
#include "snapshot/status_board.h"
#include "snapshot/version_fates.h"
#include "snapshot/waiter.h"
#include "snapshot/warm_slots.h"

namespace unreft::snapshot {

// What a rank had stored beside its tensors, verified; none when it had stored nothing.
using StoredExtras = std::optional<std::vector<std::byte>>;

// What the store decided for the attempt; the same on every rank but for `tensors` and `extras`.
struct Restored {
  bool fresh = true;  // nothing was ever committed
  Version version;    // decided
  Timeline timeline;  // opened by the decision
  // How many ranks saved it; 0 when it is fresh.
  uint64_t source_world = 0;
  // The durable copy that it was loaded from; empty: memory had it.
  std::string durable_copy;
  // Every logical tensor, with this rank's earlier box, or whole if another number of ranks saved
  // it.
  std::vector<TensorSpec> tensors;
  // This rank's earlier ones; none if another number of ranks saved the version, see RestoreExtras.
  StoredExtras extras;
};

// A failed read of what was stored, with what helps.
absl::Status Advised(const absl::Status& status);

class ClientActor : private Session::Events, private Capture::Events {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // `connector` belongs to this actor alone; `identity` is what it says in Hello.
  ClientActor(Executor& executor, Connector& connector, SegmentStore& segments,
              DeviceCopier& copier, Random random, Hello identity, const ClientOptions& options);

  // Begins to connect, and goes on for ever.
  void Start();
  void Close();

  // OK at the first Welcome. Unavailable at the deadline; what the daemon said when it refuses.
  void WhenConnected(Done done);

  // Waits for the decision for all ranks of the attempt, which all give the same newest step that
  // they restore, or none; until then Snapshot fails.
  void RestoreBegin(absl::AnyInvocable<void(absl::StatusOr<Restored>)> done,
                    std::optional<Step> at_or_before = std::nullopt);
  // What one of the ranks that saved the decided version had stored beside its tensors. DataLoss
  // when it does not verify, OutOfRange for a rank that there was not, Unavailable when the daemon
  // cannot say.
  void RestoreExtras(Rank rank, absl::AnyInvocable<void(absl::StatusOr<StoredExtras>)> done);
  // Asks where the bytes of the decided version are; for RestoreRead on a thread of the caller's.
  // What other nodes have is copied into the targets from then on.
  void RequestPlan(std::vector<BoundTensor> targets, PlanFollower::GotPlan done);
  // After Restorer::Read of the plan: waits for what other nodes have, and tells the daemon of
  // bytes that are bad. Answers with another plan when that is to be read too, then to be called
  // again.
  void FinishRead(const RestoreReport& report, PlanFollower::Finished done);
  // RequestPlan, read in a turn, FinishRead.
  void RestoreRead(std::vector<BoundTensor> targets, Done done);
  // The store may reuse what was restored; implied by the first snapshot.
  void RestoreEnd();

  // Makes a new layout generation; a snapshot under way is finished or given up first. When the
  // deadline passes the registration stays, and holds once the daemon has answered it.
  void Register(GivenTensors tensors, uint64_t extras_bytes, Done done);
  // Its halves, for a caller that has waited for the copies itself. The first waits for nothing
  // outside of this process: once it has returned, nothing of what was registered before is
  // captured any more, Rebind counts these tensors, and snapshots skip until the daemon has
  // answered the second. InvalidArgument for tensors that make no table; what was registered before
  // stays then.
  absl::Status TakeTensors(GivenTensors tensors);
  void AskForSlots(uint64_t extras_bytes, Done done);

  // OK once a snapshot would start; FailedPrecondition when waiting does not help.
  void WaitReady(Duration timeout, Done done);

  // Whoever waits for a welcome, a decision, a read or a registration is answered with `why`. No
  // target of a read is touched any more when this returns.
  void EndWaits(const absl::Status& why);

  void FenceThen(Task done);

  // OK when every rank has committed the snapshot of `step`; Aborted when it was skipped, given up
  // or abandoned; NotFound when there was none. `step` is of the present timeline.
  void WaitCommitted(Step step, Duration timeout, Done done);

  // Whether anything was ever committed in this job, as the daemon knows it. Decides nothing and
  // waits for no other rank; Unavailable when the daemon cannot say within the connect timeout.
  void EverCommitted(absl::AnyInvocable<void(absl::StatusOr<bool>)> done);

  // --- For the training thread, see Capture ---
  absl::StatusOr<SnapshotResult> Snapshot(Step step, std::span<const std::byte> extras,
                                          void* stream);
  absl::Status SkipSnapshot(Step step, std::string_view why);
  absl::Status Fence(void* stream) { return capture_.Fence(stream); }
  void WaitForCopies() { capture_.WaitForCopies(); }
  absl::Status Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data) {
    return capture_.Rebind(tensors, data);
  }
  // Streams besides the one of Snapshot that write the tensors.
  absl::Status SetWriters(std::vector<void*> streams) {
    return copier_.SetWriters(std::move(streams));
  }

  // Thread-safe.
  ClientStatus status() {
    ClientStatus status = board_.Read();
    status.ready = capture_.WhyNotReady().ok();
    protection_.Fill(status, executor_.Now());
    return status;
  }
  // As of Capture. Thread-safe.
  absl::Status WhyNotReady() { return capture_.WhyNotReady(); }
  // For tests: what stands in the way of a commit, as it was told, however short the time.
  std::string told() const { return protection_.Told(); }
  // On any thread, one at a time.
  const Restorer& restorer() const { return restorer_; }

 private:
  using LayoutPtr = std::shared_ptr<const CaptureLayout>;

  void OnWelcome(const Welcome& welcome) override;
  void OnLost(const absl::Status& why) override;
  void OnRefused(const absl::Status& why) override;
  void OnDecision(Decision decision) override;
  void OnExtras(Extras extras) override;
  void OnPlan(Plan plan, std::vector<PlanPiece> pieces) override {
    follower_.OnPlan(std::move(plan), std::move(pieces));
  }
  void OnStaged(Staged staged) override { follower_.OnStaged(staged); }
  void OnRegistered(Registered registered) override;
  void OnVersionState(VersionState state) override;
  void OnEverCommitted(const unreft::EverCommitted& answer) override;
  void OnObstacle(Obstacle obstacle) override { protection_.Obstacle(std::move(obstacle.what)); }

  void OnClaimed(const Claimed& claimed, const RandomId& memory) override;
  void OnProgress(const Progress& progress) override;
  void OnCaptured(Captured captured) override;
  void OnGaveUp(GaveUp gave_up) override;
  void OnSkipped(Skipped skipped) override;

  void AskForDecision(std::optional<Step> at_or_before,
                      absl::AnyInvocable<void(absl::StatusOr<Restored>)> done);
  absl::StatusOr<Restored> Accept(Decision decision);
  RestoreReport TakeExtras(const WireExtras& stored, StoredExtras& extras) const;
  void ReadPlan(const RestorePlan& plan, std::vector<BoundTensor> targets, Done done);
  void ReportRead(const RestoreReport& report);
  void OpenTimeline(const Restored& restored);
  void LookWhetherReady();
  void MapAhead(std::vector<WireSlot> slots);
  void MapSome();
  void UnmapLater();
  absl::Status Install(LayoutPtr layout, const Registered& registered);
  void EndRegistering(const absl::Status& status);
  void Fail(Done done, absl::Status status);
  void TellIfItCannotBeAsked();
  void TellIfItKnowsNoExtras();
  // The message of a deadline, which also says how the connection is.
  absl::AnyInvocable<std::string()> Late(std::string what, Duration timeout) const;

  Executor& executor_;
  SegmentStore& segments_;
  DeviceCopier& copier_;
  const ClientOptions options_;
  const Rank rank_;
  const uint64_t world_;
  const Attempt attempt_;

  StatusBoard board_;
  ProtectionBoard protection_;
  WarmSlots warm_slots_;
  Restorer restorer_;
  Session session_;
  PlanFollower follower_;
  Capture capture_;

  uint64_t last_request_ = 0;
  std::optional<Step> at_or_before_;  // what the last restore may restore at most
  absl::Status refused_;              // for good
  Timeline timeline_;                 // of the decision that holds

  Waiter<Unit> connect_waiter_;
  Waiter<Restored> restore_waiter_;
  Waiter<StoredExtras> extras_waiter_;
  Waiter<Unit> register_waiter_;
  Waiter<Unit> ready_waiter_;
  Waiter<bool> ever_committed_waiter_;
  VersionFates fates_;

  // What is registered, and where the last answer put it.
  layout::TensorTable table_;
  std::vector<ShardMemory> memory_;  // as it was registered; Capture follows what is rebound
  std::shared_ptr<const MappedSlots> slots_;
  uint64_t last_answer_ = 0;    // counts answers, and what makes the last one void
  uint64_t staging_bytes_ = 0;  // that the copier has reserved

  // Set in turns, cleared by whoever ends the restore first.
  std::atomic<bool> restore_open_ = false;
  bool mapping_ahead_ = false;  // a turn of MapSome is to come

  Lifetime lifetime_;
};

}  // namespace unreft::snapshot
