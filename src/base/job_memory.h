// JobMemory: what the jobs of this user hold of this host's shared memory, whether a daemon serves
// it or none does any more.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/shm_segment_store.h"

namespace unreft {

// The segments of one daemon: of a job, by the number that it was started with.
struct JobMemory {
  std::string job;
  uint64_t node = 0;
  uint64_t segments = 0;
  uint64_t bytes = 0;
  bool is_served = false;  // a daemon holds the lock of its node segment
};

// By job, then node. Blocking, thread-safe; segments may come and go meanwhile.
absl::StatusOr<std::vector<JobMemory>> ListJobMemory(ShmSegmentStore& segments);

// A sentence for a node that is refused memory: it names those that no daemon serves, the largest
// first and four at most, and the command that frees them. The node that is refused, `but_job` and
// `but_node`, is left out. Empty when there are none.
std::string DescribeUnserved(const std::vector<JobMemory>& all, const std::string& but_job,
                             uint64_t but_node);

}  // namespace unreft
