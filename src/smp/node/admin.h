// The answers to the CLI's questions, as JSON (docs/operations.md).
#pragma once

#include <absl/functional/any_invocable.h>

#include <string>

#include "base/session_frames.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/job/protection.h"
#include "smp/memory/slot_verifier.h"
#include "smp/node/export_desk.h"

namespace unreft::smp {

struct AdminDesk {
  NodeState& state;
  SlotVerifier& verifier;
  const Member* member;  // as MetricsText takes it
  Protection& protection;
  const ExportDesk* exports = nullptr;  // none: this node writes no copies
};
// Calls `reply` once, in this turn or a later one. Verbs: status, versions, verify, pin, unpin,
// rewind, resize, fresh-start, metrics ("memory" is MemoryDesk's, "cluster" ClusterDesk's, "plan"
// RestoreForecast's). InvalidArgument for another.
void AnswerAdmin(const AdminDesk& desk, const AdminRequest& request,
                 absl::AnyInvocable<void(AdminReply)> reply);

// The metrics in Prometheus' text format; of a daemon that is yet to adopt its memory only that it
// is there. Without `member`: of this node alone.
// Without `exports`: nothing of copies.
std::string MetricsText(const NodeState& state, const Member* member,
                        const ExportDesk* exports = nullptr);
// Those of a daemon that waits for a slot.
std::string SpareMetricsText(const NodeOptions& options);

}  // namespace unreft::smp
