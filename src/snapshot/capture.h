// Capture: the machine that takes snapshots into the slots that the daemon grants.
//
//   idle ──Snapshot: claim──▶ preparing ─▶ copying buckets, then samples ─▶ captured
//                                 └──────────────┴── closed ──▶ gave up
//
// Two threads meet here: the training thread (Snapshot, and Fence in its blocking form) and the
// thread of the executor (everything else). `mutex_` guards every field that is not constant; it is
// held for bookkeeping only, never while bytes are copied. Jobs (one bucket, or the samples of one
// tensor) are taken one by one under the mutex, by the executor's turns and by a training thread
// that waits in a fence; who took one copies it, then says so under the mutex. Closing a snapshot
// is one edit under the mutex: no job is taken after it, and the snapshot ends when the jobs that
// were taken have ended. So nothing touches the trainer's tensors, nor the slot, after the end.
//
// A snapshot depends on the daemon only for its grant, which is a word in shared memory.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/session_frames.h"
#include "snapshot/capture_layout.h"
#include "snapshot/capture_run.h"
#include "snapshot/client_options.h"
#include "snapshot/device_copier.h"
#include "snapshot/mapped_slots.h"
#include "snapshot/status_board.h"
#include "snapshot/uncommitted.h"

namespace unreft::snapshot {

enum class Outcome : uint8_t { kStarted = 1, kSkipped = 2 };

struct SnapshotResult {
  Outcome outcome = Outcome::kSkipped;
  std::string reason;  // of a skip
};

class Capture {
 public:
  // The doorbells, in turns of the executor, in the order of what they tell.
  class Events {
   public:
    virtual ~Events() = default;
    // `memory`: the incarnation that the slot belongs to.
    virtual void OnClaimed(const Claimed& claimed, const RandomId& memory) = 0;
    virtual void OnProgress(const Progress& progress) = 0;
    virtual void OnCaptured(Captured captured) = 0;
    virtual void OnGaveUp(GaveUp gave_up) = 0;
    virtual void OnSkipped(Skipped skipped) = 0;
  };

  Capture(Executor& executor, DeviceCopier& copier, const CaptureOptions& options,
          StatusBoard& board, Events& events);

  // --- On the training thread, one at a time ---

  // Claims the granted slot and starts to copy. FailedPrecondition when nothing is registered, the
  // timeline is not known, or `step` is not beyond the last one; ResourceExhausted when the extras
  // do not fit. Never waits.
  absl::StatusOr<SnapshotResult> Snapshot(Step step, std::span<const std::byte> extras,
                                          void* stream);
  // There is none of the step, for a reason of the program's. FailedPrecondition as above.
  absl::Status Skip(Step step, std::string why);

  // OK if a snapshot of a step that is not too early would start: a slot is granted, and none is
  // being copied. Unavailable where waiting may help, FailedPrecondition where it does not. Any
  // thread.
  absl::Status WhyNotReady();

  // Returns once what `stream` is given from now on may change the tensors. Of host memory the
  // copies have ended, or were given up at the deadline. Tensors on a device hold up the stream,
  // not this thread: it waits for the copies that are enqueued, and if that is not all, the
  // snapshot is given up (docs/protocol.md, rule 9). An error says that the stream does not wait;
  // the snapshot is given up then. Not in a turn.
  absl::Status Fence(void* stream);

  // Returns once no copy reads the tensors any more, nor will. Not in a turn.
  void WaitForCopies();

  // The `tensors[i]`-th of those that the last Bind was given lies at `data[i]` from the next
  // snapshot on; one under way goes on reading where it was. FailedPrecondition when nothing is
  // bound, OutOfRange, and InvalidArgument for data that is null unless the tensor has no shards;
  // nothing is changed then.
  absl::Status Rebind(std::span<const uint64_t> tensors, std::span<std::byte* const> data);

  // --- In turns of the executor ---

  // Tells the events of all that has happened so far, which a turn of its own would tell later.
  void DeliverReports();

  // Like Fence, by callback: the tensors may change from then on.
  void FenceThen(Task done);
  // Like WaitForCopies, by callback.
  void WhenCopied(Task done);

  // Snapshots from now on belong to it.
  void SetTimeline(Timeline timeline);
  // All ranks have committed it, so their replicas were compared: until then each snapshot is
  // sampled, since a rank may have skipped the one that another sampled.
  void NoteCommitted(const Version& version);
  // From now on Snapshot fails because of `why`: no decision holds.
  void CloseTimeline(std::string why);

  // From now on nothing is captured, and Snapshot skips because of `why`. `passes`: an Install is
  // on its way.
  void Suspend(std::string why, bool passes = false);

  // Of which shards the layouts are that are installed from now on, where they lie, and where those
  // of each tensor given end among them (GivenTensors). Nothing is under way.
  void Bind(const layout::TensorTable& table, std::vector<ShardMemory> memory,
            std::vector<size_t> tensor_ends);
  // A restore writes the tensors: what they were before says nothing any more.
  void NoteRestore();

  // Snapshots follow this layout into these slots. A snapshot under way goes on if its slot lies in
  // the same memory, and is closed otherwise.
  void Install(std::shared_ptr<const CaptureLayout> layout,
               std::shared_ptr<const MappedSlots> slots);

  // Gives up the snapshot under way if it is of that version.
  void Abandon(const Version& version, const std::string& why);

 private:
  using Run = CaptureRun;
  using RunPtr = std::shared_ptr<Run>;

  struct Job {
    RunPtr run;
    CaptureJob what;
    std::vector<CopyOp> ops;
    std::vector<std::byte> scratch;  // of a sample
    WrittenTensors written;          // what a look has found
  };

  struct Waiting {
    uint64_t id = 0;
    Task done;
    TimerId timer = TimerId::kNone;
  };

  // "Locked": mutex_ is held.
  absl::Status CheckLocked(Step step) const;
  std::string WhySkipLocked(Step step) const;
  std::string WhyUnfenced(Step step);
  absl::StatusOr<SnapshotResult> SkipLocked(Step step, std::string why);
  const MappedSlot* GrantedLocked(GrantWord grant, std::string& why) const;
  void GiveUpClaimLocked(const Claimed& claimed, std::string why, uint64_t extras_bytes_needed);
  const MappedSlot* ClaimLocked(GrantWord& grant, std::string& why);
  absl::Status RefuseExtrasLocked(const Claimed& claimed, uint64_t needed, uint64_t found);
  RunPtr BeginLocked(const Claimed& claimed, const MappedSlot& slot, uint64_t extras_bytes);
  std::shared_ptr<void> PinLocked(const MappedSlot& slot);
  bool ChecksReplicasLocked(Step step) const;
  absl::Status Prepare(const RunPtr& run, std::span<const std::byte> extras);
  absl::Status ProbeDevice(const RunPtr& run);
  absl::Status StartProbe(const RunPtr& run, CaptureJob::Kind kind);
  void EndPreparation(const RunPtr& run, absl::Status& status);

  RunPtr TakeLocked(bool by_executor, CaptureJob& what);
  static Job MakeJob(RunPtr run, const CaptureJob& what);
  void Pump();
  void PostPump();
  void StartJob(RunPtr run, const CaptureJob& what);
  void Help(std::unique_lock<std::mutex>& lock);
  void NoteFoundLocked(const Job& job, const absl::Status& status);
  void FinishJob(Job& job, const absl::Status& status, bool by_executor);
  void PublishLocked(Run& run);
  void CloseLocked(const RunPtr& run, std::string why);
  void EndIfDoneLocked(const RunPtr& run);
  void ReportEndLocked(const RunPtr& ended);
  void WakeLocked();
  absl::Status FenceDevice(const RunPtr& run, void* stream, Time since,
                           std::unique_lock<std::mutex>& lock);
  void AwaitEnqueued(const RunPtr& run, Time since, std::unique_lock<std::mutex>& lock);
  void WaitLocked(const RunPtr& run, Time since, bool for_host_only,
                  std::unique_lock<std::mutex>& lock);
  void FenceTimedOut(uint64_t waiting_id);
  void RecordWait(Time since);
  std::string LateMessage() const;
  template <typename Message>
  void ReportLocked(void (Events::*event)(Message), std::decay_t<Message> message);
  void ReportLocked(Task report);

  Executor& executor_;
  DeviceCopier& copier_;
  const CaptureOptions options_;
  StatusBoard& board_;
  Events& events_;

  std::mutex mutex_;
  // All below is guarded by mutex_.
  std::condition_variable ended_;  // a run or a job of it ended
  RunPtr run_;                     // null: nothing touches the tensors
  std::shared_ptr<const CaptureLayout> layout_;
  MemoryPtr memory_ = std::make_shared<const std::vector<ShardMemory>>();
  std::vector<size_t> tensor_ends_;  // in memory_, of each tensor given
  ProbesPtr probes_;
  bool probes_device_ = false;  // room was made there
  ProbedPtr probed_;            // at the last snapshot or registration; null when that says nothing
  bool fenced_ = false;         // since then
  std::string unfenced_;        // why snapshots are skipped until a fence; empty while they are not
  std::shared_ptr<const MappedSlots> slots_;
  std::map<SlotId, std::shared_ptr<void>> pins_;  // of slots_, from their first claim on
  std::string suspended_ = "no tensors are registered";
  bool suspension_passes_ = false;
  bool had_memory_ = false;  // granted for layout_
  Uncommitted uncommitted_;  // of timeline_
  Timeline timeline_;        // 0 while none is open
  std::string why_no_timeline_ = "no restore has been decided in this process";
  std::optional<Step> last_step_;  // claimed in timeline_
  bool replicas_checked_ = false;  // in timeline_, of layout_
  std::vector<Waiting> waiting_;
  uint64_t last_waiting_ = 0;
  // Reports to `events_` that no turn has delivered yet. A queue of our own, since the executor
  // keeps the order of one thread's posts only: the training thread's next claim must not overtake
  // the copier thread's last capture.
  std::vector<Task> reports_;

  Lifetime lifetime_;
};

}  // namespace unreft::snapshot
