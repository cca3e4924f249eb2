// Reads of the transport against plain TCP, over loopback: what moving a byte between nodes costs.
#pragma once

#include <vector>

#include "tools/bench/record.h"

namespace unreft::bench {

// CPU seconds of both ends per GB, and GB/s.
std::vector<Record> RunTransport(int repetitions);

}  // namespace unreft::bench
