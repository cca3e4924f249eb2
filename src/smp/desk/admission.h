// Admission: whether a process that says Hello is one of this job's trainers, and who it says it
// is.
#pragma once

#include <absl/status/status.h>

#include "base/channel.h"
#include "base/session_frames.h"
#include "smp/desk/node_state.h"

namespace unreft::smp {

// Why it is not served, with what to do; AlreadyExists if it may come again, since the life before
// it is about to end. `hello.life` becomes what this daemon knows the process by: in a pid
// namespace of its own it knows itself by another pid.
absl::Status Admit(NodeState& state, Hello& hello, const PeerIdentity& peer);

}  // namespace unreft::smp
