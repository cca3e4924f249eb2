#include "snapshot/replica_samples.h"

namespace unreft::snapshot {

std::vector<layout::ByteRange> SampleRanges(uint64_t shard_bytes) {
  if (shard_bytes == 0) return {};
  if (shard_bytes <= kSamplesMax * kSampleBytes) return {{0, shard_bytes}};
  std::vector<layout::ByteRange> ranges;
  ranges.reserve(kSamplesMax);
  const uint64_t last = shard_bytes - kSampleBytes;
  // last / (kSamplesMax - 1) >= kSampleBytes here, so the ranges do not overlap.
  const uint64_t stride = last / (kSamplesMax - 1);
  for (uint64_t i = 0; i + 1 < kSamplesMax; ++i) {
    ranges.push_back({i * stride, i * stride + kSampleBytes});
  }
  ranges.push_back({last, shard_bytes});
  return ranges;
}

}  // namespace unreft::snapshot
