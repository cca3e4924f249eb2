// Which bytes of a shard are compared between its replicas (docs/protocol.md, rule 13). Pure:
// replicas choose alike without a message, from the size of the shard alone.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/capture_plan.h"

namespace unreft::snapshot {

inline constexpr uint64_t kSampleBytes = 4096;
inline constexpr uint64_t kSamplesMax = 64;

// Up to kSamplesMax ranges of kSampleBytes, spread evenly, the first and the last bytes among them;
// the whole of a shard that is not larger than that. Ascending and disjoint.
std::vector<layout::ByteRange> SampleRanges(uint64_t shard_bytes);

}  // namespace unreft::snapshot
