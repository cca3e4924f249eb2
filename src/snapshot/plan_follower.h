// PlanFollower: asks where the bytes of one read of a restore are, and sees to those of them that
// come staged.
//
//   Begin ─▶ asked ──Plan──▶ staging ──last block──▶ over ◀─ Finish waits for this
//                  │            └─lost─▶ asked again, staging anew
//                  └─nothing is staged──────────────▶ over
//
// The caller reads the local pieces between Begin's answer and Finish, on any thread; blocks are
// copied in turns meanwhile. A plan that comes again after a reconnect may divide the bytes
// otherwise than the one that the caller reads by: nothing is copied by it, and Finish gives the
// caller a new one to read.
//
// Single-threaded on its executor. Every callback runs once, never inline, at the latest at the
// deadline of the read. No target is touched once the last of its callbacks has run.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/segment_store.h"
#include "base/session_frames.h"
#include "snapshot/bound_tensor.h"
#include "snapshot/client_options.h"
#include "snapshot/device_copier.h"
#include "snapshot/restore_plan.h"
#include "snapshot/session.h"
#include "snapshot/staged_reader.h"
#include "snapshot/waiter.h"

namespace unreft::snapshot {

class PlanFollower {
 public:
  using GotPlan = absl::AnyInvocable<void(absl::StatusOr<RestorePlan>)>;
  // Nothing: all staged bytes are in place. A plan: its local pieces are to be read, then Finish.
  using Finished = absl::AnyInvocable<void(absl::StatusOr<std::optional<RestorePlan>>)>;

  PlanFollower(Executor& executor, Session& session, SegmentStore& segments, DeviceCopier& copier,
               const ClientOptions& options)
      : executor_(executor),
        session_(session),
        segments_(segments),
        copier_(copier),
        options_(options),
        plan_waiter_(executor),
        end_waiter_(executor) {}

  // A read that is under way is answered Aborted.
  void Begin(std::vector<BoundTensor> targets, GotPlan done);
  void Finish(Finished done);
  bool reading() const { return read_ != nullptr; }
  // Ends the read that is under way; whoever waits for it gets `why`.
  void Cancel(const absl::Status& why);

  // With the pieces of the pages that came before it.
  void OnPlan(Plan plan, std::vector<PlanPiece> pieces);
  void OnStaged(const Staged& staged);
  void OnLost();

 private:
  enum class Phase { kAsked, kStaging, kOver };
  struct Read {
    std::vector<BoundTensor> targets;
    Time deadline;
    Phase phase = Phase::kAsked;
    RestorePlan plan;                    // that the caller reads by
    std::optional<StagedReader> staged;  // of this connection
    absl::Status status;                 // of the staging that is over
    bool replan = false;                 // the plan changed meanwhile
  };

  void Ask(GotPlan done);
  absl::Status StatusOf(const Plan& plan, size_t pieces) const;
  void StartStaging();
  absl::StatusOr<StagedReader> MakeReader();
  absl::Status MapStaging(const RestorePlan& plan);
  void EndStaging(const absl::Status& status);
  void Conclude(const std::shared_ptr<Read>& read, const absl::Status& status, Finished done);
  Duration Left() const { return read_->deadline - executor_.Now(); }
  std::string Late(const std::string& what) const;

  Executor& executor_;
  Session& session_;
  SegmentStore& segments_;
  DeviceCopier& copier_;
  const ClientOptions& options_;

  uint64_t last_request_ = 0;
  std::shared_ptr<Read> read_;
  Waiter<RestorePlan> plan_waiter_;
  Waiter<Unit> end_waiter_;
  std::shared_ptr<Segment> staging_;  // of this plan on this connection
  Lifetime lifetime_;
};

}  // namespace unreft::snapshot
