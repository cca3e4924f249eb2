// The answers to the CLI's questions, as JSON (docs/operations.md).
#pragma once

#include <absl/functional/any_invocable.h>

#include <string>

#include "base/session_frames.h"
#include "smp/member.h"
#include "smp/node_state.h"
#include "smp/slot_verifier.h"

namespace unreft::smp {

// Calls `reply` once, in this turn or a later one. Verbs: status, cluster, versions, verify,
// fresh-start, pin, unpin, metrics ("memory" is MemoryDesk's). InvalidArgument for another.
// `member` is null in a job of one node.
void AnswerAdmin(NodeState& state, SlotVerifier& verifier, Member* member,
                 const AdminRequest& request, absl::AnyInvocable<void(AdminReply)> reply);

// The metrics in Prometheus' text format.
std::string MetricsText(const NodeState& state);

}  // namespace unreft::smp
