// Registrar: the ranks' registrations: whether they are taken, the memory that each is given, and
// what each rank is told of that.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <string>
#include <vector>

#include "smp/capture/budget_log.h"
#include "smp/capture/granter.h"
#include "smp/core/shortage_retry.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Registrar {
 public:
  // `run_rules`: registrations have changed, or the memory for them. It calls the rules below.
  Registrar(NodeState& state, Granter& granter, absl::AnyInvocable<void()> run_rules);
  ~Registrar();
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

  void OnRegister(RankSession& session, Register request);
  // The registered rank's extras need so much: it gets slots with room for them, and is told.
  // Without memory for these it keeps those that it has.
  void GrowExtras(RankSession& session, uint64_t bytes);
  // Whoever captures a part of what it holds registers anew, with all of it.
  void CaptureAll(const std::string& why);
  // There may be memory again: who was refused for want of it may have its slots now, unasked.
  void ProvideRefused();
  // Whether somebody who was refused for want of memory would be so again.
  bool LacksMemory();

  // --- whether all ranks' registrations fit together ---
  std::vector<RegisteredTrainer> Registrations() const;
  void OnChecked(const RegistrationCheck& check);

  // --- rules ---
  // Of this session: it is told of slots that are gone, and of new ones, before it is granted one.
  void TellOfSlots(RankSession& session);
  // Whether what it registered may be granted a slot.
  bool MayCapture(const RankSession& session) const;
  // Its registration, after it was granted a slot.
  void AnswerOnceDecided(RankSession& session);
  // Looks for memory again after a while, where some was lacking.
  void RetryIfShort();

 private:
  absl::Status Accept(RankSession& session, std::vector<TensorSpec> specs);
  absl::Status ProvideSlots(RankSession& session);
  SlotNeeds NeedsOf(const RankSession& session) const;
  bool IsOfOthers(const Slot& slot, uint64_t world) const;
  bool IsKept(Version version) const;
  void RetireOfOthers();
  uint64_t SlotsWanted(const RankSession& session) const;
  bool LacksSlots(const RankSession& session) const;
  void ProvideStaging();
  void LogRefused(const RankSession& session);
  void LogLarge(const RankSession& session, uint64_t bytes, const absl::Status& why);
  void Answer(RankSession& session);
  void AnswerWhenChecked(RankSession& session);
  void AnswerInTime();
  bool MayGetMemory(const RankSession& session) const;
  void AddProgress(const RankSession& session, RegisteredTrainer& trainer) const;
  static bool IsChecked(const RankSession& session);
  void TellMisfit();
  void TellAll(const absl::Status& misfit);
  void TellShortage(RankSession& session);
  void TellNewSlots(RankSession& session);

  NodeState& state_;
  Granter& granter_;
  absl::AnyInvocable<void()> run_rules_;
  layout::CaptureMode mode_;
  absl::Status misfit_;  // of the ranks' registrations, as was found last
  TimerId misfit_timer_ = TimerId::kNone;
  TimerId answer_timer_ = TimerId::kNone;
  absl::Status staging_status_;
  BudgetLog budget_log_;
  ShortageRetry shortage_;
};

}  // namespace unreft::smp
