// A dry run: the ranks of a job are started once, say which tensors they would restore, and end
// (`unreft run --dry-run`). What they say is joined to one file, for `unreft plan --layout`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cli/context.h"
#include "tools/cli/launcher.h"

namespace unreft::cli {

// `nodes`: of each rank, the slot of its node. Returns the exit code.
int RunDry(const Context& context, LaunchOptions launch, const std::vector<uint64_t>& nodes,
           const std::string& file);

}  // namespace unreft::cli
