// ProbesBench: what the second net (docs/second_net.md) costs a snapshot of host memory.
#pragma once

#include <vector>

#include "tools/bench/record.h"

namespace unreft::bench {

// probes_1936 and probes_133328: milliseconds of the digests at the begin of a snapshot and at its
// end, of so many tensors as Adam has them, with cold caches. The reference reads one word of each
// of the same lines, twice.
std::vector<Record> RunProbes(int repetitions);

}  // namespace unreft::bench
