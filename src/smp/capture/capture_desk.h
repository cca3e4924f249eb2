// CaptureDesk: the daemon's side of a snapshot, from the registration to the sealed slot.
//
// Rules on state: after every event RunRules looks at each session and its slots and starts what is
// missing (a grant); events only edit state.
//
// The room capture brings a snapshot from the registration to a sealed slot. It includes desk and
// what desk does. Start here; slot_sealer.h is the way from published bytes to the seal.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <optional>
#include <string>
#include <vector>

#include "smp/capture/slot_sealer.h"
#include "smp/core/shortage_retry.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class CaptureDesk {
 public:
  explicit CaptureDesk(NodeState& state);
  ~CaptureDesk();

  // --- frames ---
  void OnRegister(RankSession& session, Register request);
  void OnClaimed(RankSession& session, const Claimed& claimed);
  void OnProgress(RankSession& session, const Progress& progress);
  void OnCaptured(RankSession& session, Captured captured);
  void OnSkipped(RankSession& session, const Skipped& skipped);
  void OnGaveUp(RankSession& session, const GaveUp& gave_up);

  // --- of the coordinator ---
  void OnCommitted(Version version);
  void OnAbandoned(Version version, const std::string& reason);
  void OnCaptureFrom(Version first);
  void OnReplicasDisagree(const std::string& what);
  void OnRegistrationsChecked(const RegistrationCheck& check);
  std::vector<RegisteredTrainer> Registrations() const;
  // There may be memory again: who was refused for want of it may have its slots now, unasked.
  void ProvideRefused();

  // Takes back what was offered; `drained` runs once everything completely captured is sealed.
  void Close(absl::AnyInvocable<void()> drained);

  // The session is over, its life perhaps not: its offer is taken back, what it did not complete is
  // given up, and a slot that it may still write to is not used before the life ends.
  void OnSessionEnded(RankSession& session);

  void RunRules();

 private:
  void AddProgress(const RankSession& session, RegisteredTrainer& trainer) const;
  absl::Status Accept(RankSession& session, std::vector<TensorSpec> specs);
  absl::Status ProvideSlots(RankSession& session);
  void LogRefused(const RankSession& session);
  void Answer(RankSession& session);
  void AnswerWhenChecked(RankSession& session);
  static bool IsChecked(const RankSession& session);
  void TellMisfit();
  void TellShortage(RankSession& session);
  void TellNewSlots(RankSession& session);
  void TellAll(const absl::Status& misfit);
  void ProvideStaging();
  bool IsShort() const;
  void TellBudgetSoon();
  void LogBudget();

  void TellCaptureFrom(RankSession& session) const;
  void EnsureGrant(RankSession& session);
  bool MayGrant(RankSession& session) const;
  Slot* RetireForGrant(RankSession& session);
  void Revoke(RankSession& session);
  void AdoptGrant(RankSession& session);
  Slot* SlotOf(RankSession& session, SlotId id, Generation generation);
  void Refuse(RankSession& session, Slot& slot, Version version, const std::string& reason);
  void OnSealed(Slot& slot, const absl::Status& status);
  void TellAbandoned(RankSession& session, Version version, const std::string& reason);
  void TellEnd(RankSession& session, Version version);

  NodeState& state_;
  SlotSealer sealer_;
  layout::CaptureMode mode_;
  Version capture_from_;                // steps of its timeline before it are skipped
  absl::AnyInvocable<void()> drained_;  // waits in Close
  absl::Status misfit_;                 // of the ranks' registrations, as was found last
  TimerId misfit_timer_ = TimerId::kNone;
  TimerId answer_timer_ = TimerId::kNone;
  TimerId budget_timer_ = TimerId::kNone;
  std::string budget_told_;
  absl::Status staging_status_;
  ShortageRetry shortage_;
};

}  // namespace unreft::smp
