// "resize": an operator's order on which nodes the job is to run, asked of any daemon.
#pragma once

#include <absl/functional/any_invocable.h>
#include <unreft/cluster.pb.h>

#include <nlohmann/json.hpp>

#include "base/session_frames.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

// Calls `reply` once, in this turn or a later one. Without arguments it is asked what is ordered.
void AnswerResize(NodeState& state, const AdminRequest& request,
                  absl::AnyInvocable<void(AdminReply)> reply);

// {"nodes", "without", "ordered_s"}; null where the record has none.
nlohmann::ordered_json ResizeJson(const TimelineRecord& timeline);

}  // namespace unreft::smp
