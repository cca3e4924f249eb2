// The answer to "cluster": what this node knows of the job's nodes, as JSON (docs/operations.md).
#pragma once

#include <absl/functional/any_invocable.h>

#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"

namespace unreft::smp {

// Calls `reply` once, in this turn or a later one. Any node answers; how many losses the groups
// stand is asked of the leader, and null with the reason when none answers. FailedPrecondition in a
// job of one node, whose meta store is its daemon's own memory.
void AnswerCluster(const NodeState& state, Member& member,
                   absl::AnyInvocable<void(AdminReply)> reply);

}  // namespace unreft::smp
