// RestoreDesk: the daemon's side of a restore: it gathers the ranks that ask, tells each what was
// decided, and says where the bytes are.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "recovery/restore_planner.h"
#include "smp/node_state.h"
#include "smp/slot_verifier.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RestoreDesk {
 public:
  explicit RestoreDesk(NodeState& state);

  // --- frames ---
  void OnRestoreRequest(RankSession& session, const RestoreRequest& request);
  void OnPlanRequest(RankSession& session, PlanRequest request);
  void OnRestoreDone(RankSession& session, const RestoreDone& done);

  // --- of the coordinator ---
  std::vector<recovery::SealedSlab> Inventory() const;
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done);
  void OnDecision(const JobDecision& decision);

  // The ranks that still ask, after a session ended.
  void AskAgain(const RankSession& like);

 private:
  Decision AnswerFor(const RankSession& session, const JobDecision& decision) const;
  absl::Status FillPlan(const RankSession& session, PlanRequest request, Plan& plan) const;
  void DropDeadVersions();

  NodeState& state_;
  SlotVerifier verifier_;
  JobDecision last_decision_;
};

}  // namespace unreft::smp
