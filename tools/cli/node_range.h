// NodeRange: on how few and on how many of a job's nodes an attempt may run, and with how many
// ranks it does. Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace unreft::cli {

struct NodeRange {
  uint64_t min = 0;
  uint64_t max = 0;  // 0: no range was given, and an attempt is on all nodes
  bool is_given() const { return max > 0; }
};

// Of "MIN:MAX" or "N", which is N:N; ends are at least 1 and in order. `IsRange` is for CLI11: why
// the text is none, or empty.
NodeRange ParseRange(const std::string& text);
std::string IsRange(const std::string& text);

// InvalidArgument where the job has another number of nodes than MAX, or an attempt on MIN of them
// would have no ranks.
absl::Status CheckRange(const NodeRange& range, uint64_t nodes, uint32_t ranks, uint64_t multiple);

// The ranks of an attempt on `n` of `nodes` nodes, of a job of `ranks` on all of them: as many on
// each node, rounded down to a multiple. InvalidArgument where none are left.
absl::StatusOr<uint32_t> RanksOn(uint64_t n, uint64_t nodes, uint32_t ranks, uint64_t multiple);

// What an attempt waits for; `vacant` are the nodes without a daemon.
std::string DescribeWait(const NodeRange& range, const std::vector<uint64_t>& vacant,
                         uint64_t there);

}  // namespace unreft::cli
