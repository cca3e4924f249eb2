// What the ranks of a layout would restore, as a daemon of their job forecasts it.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <nlohmann/json.hpp>

#include "layout/job_layout.h"
#include "tools/cli/context.h"

namespace unreft::cli {

// By node, the daemon's answer about the ranks of that node; each has the whole job's version and
// what no rank restores. InvalidArgument for a layout of another job; Unavailable when a version
// was committed between two questions.
absl::StatusOr<std::map<uint64_t, nlohmann::json>> AskOfLayout(const Context& context,
                                                               layout::JobLayout layout);

}  // namespace unreft::cli
