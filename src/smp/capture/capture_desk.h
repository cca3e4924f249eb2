// CaptureDesk: the daemon's side of a snapshot, from the trainer's claim to the sealed slot.
//
// Rules on state: after every event RunRules looks at each session and its slots and starts what is
// missing (a grant); events only edit state.
//
// The room capture brings a snapshot from the registration to a sealed slot. It includes desk and
// what desk does. Start here, in front of the two that come before a snapshot: registrar.h takes
// what a rank registers, and granter.h offers it a slot. slot_sealer.h is the way from published
// bytes to the seal.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <string>
#include <utility>
#include <vector>

#include "smp/capture/granter.h"
#include "smp/capture/registrar.h"
#include "smp/capture/slot_sealer.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class CaptureDesk {
 public:
  explicit CaptureDesk(NodeState& state);

  // --- frames ---
  void OnRegister(RankSession& session, Register request) {
    registrar_.OnRegister(session, std::move(request));
  }
  void OnClaimed(RankSession& session, const Claimed& claimed);
  void OnProgress(RankSession& session, const Progress& progress);
  void OnCaptured(RankSession& session, Captured captured);
  void OnSkipped(RankSession& session, const Skipped& skipped);
  void OnGaveUp(RankSession& session, const GaveUp& gave_up);

  // --- of the coordinator ---
  void OnCommitted(Version version);
  void OnAbandoned(Version version, const std::string& reason);
  void OnCaptureFrom(Version first) { granter_.OnCaptureFrom(first); }
  void OnReplicasDisagree(const std::string& what) { registrar_.CaptureAll(what); }
  void OnRegistrationsChecked(const RegistrationCheck& check) { registrar_.OnChecked(check); }
  std::vector<RegisteredTrainer> Registrations() const { return registrar_.Registrations(); }
  bool LacksMemory() { return registrar_.LacksMemory(); }
  // There may be memory again: who was refused for want of it may have its slots now, unasked.
  void ProvideRefused() { registrar_.ProvideRefused(); }

  // Takes back what was offered; `drained` runs once everything completely captured is sealed.
  void Close(absl::AnyInvocable<void()> drained);

  // The session is over, its life perhaps not: its offer is taken back, what it did not complete is
  // given up, and a slot that it may still write to is not used before the life ends.
  void OnSessionEnded(RankSession& session);

  void RunRules();

 private:
  void Refuse(RankSession& session, Slot& slot, Version version, const std::string& reason);
  void OnSealed(Slot& slot, const absl::Status& status);
  static void TellAbandoned(RankSession& session, Version version, const std::string& reason);
  void TellEnd(RankSession& session, Version version);

  NodeState& state_;
  SlotSealer sealer_;
  Granter granter_;
  Registrar registrar_;
  absl::AnyInvocable<void()> drained_;  // waits in Close
};

}  // namespace unreft::smp
