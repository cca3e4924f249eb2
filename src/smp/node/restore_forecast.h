// RestoreForecast: what the ranks of this node would restore if all began anew now, and from where
// (docs/operations.md, `unreft plan`). It reads descriptions and changes nothing.
//
// It is of the version that is committed and of the tensors that the ranks have registered. Each
// rank is planned for as it would be: by the planner of restores, with the slabs of this node
// first.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/restore/restore_catalog.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RestoreForecast {
 public:
  // Both outlive this.
  RestoreForecast(NodeState& state, Member& member);
  ~RestoreForecast();

  // Replies within call_timeout of the slabs' being described, or of asking in vain. All who ask
  // meanwhile get the same answer.
  void Answer(absl::AnyInvocable<void(AdminReply)> reply);

 private:
  // Of one rank: shared with the pool, which alone touches it while it computes.
  struct RankForecast;
  struct Forecast;

  void OnDescribed();
  void OnTimeout();
  void Compute();
  void Reply(const AdminReply& answer);

  NodeState& state_;
  Member& member_;
  std::vector<absl::AnyInvocable<void(AdminReply)>> asking_;
  std::unique_ptr<RestoreCatalog> catalog_;  // while somebody asks
  std::vector<recovery::SlabHolder> holders_;  // of the version that it is of
  TimerId timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
