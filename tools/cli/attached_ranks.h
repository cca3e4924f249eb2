// Which trainers a daemon has, by what it says, or, when it does not, by the segments that it has
// for them. Blocking, stateless.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cli/deadline.h"
#include "tools/cli/place.h"

namespace unreft::cli {

struct AttachedRank {
  uint64_t rank = 0;
  pid_t pid = 0;
};

// Those that are connected; of a daemon that does not answer, or has died, those that live.
std::vector<AttachedRank> FindAttachedRanks(const Place& place, Milliseconds timeout);

// "2 ranks are attached to job demo, node 0 (rank 0, pid 4711; rank 1, pid 4712)".
std::string Describe(const Place& place, const std::vector<AttachedRank>& ranks);

}  // namespace unreft::cli
