// The CLI's questions to the daemon, over the local session. Blocking, stateless.
#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/deadline.h"
#include "tools/cli/place.h"

namespace unreft::cli {

// Asks one question on a connection of its own. Unavailable when no daemon listens there,
// DeadlineExceeded naming the socket and the question; otherwise the daemon's own status.
absl::StatusOr<nlohmann::json> AskDaemon(const Place& place, const std::string& verb,
                                         const nlohmann::json& arguments, Milliseconds timeout);
// The same with arguments that are text already.
absl::StatusOr<nlohmann::json> AskDaemonText(const Place& place, const std::string& verb,
                                             std::string arguments, Milliseconds timeout);

}  // namespace unreft::cli
