// Bit flips: damage done on purpose to a sealed slot, to see it found. Stateless; works on the
// segments themselves, whether a daemon runs or not.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/segment_store.h"

namespace unreft::cli {

enum class Region { kData, kExtras, kManifest, kHeader };

struct FlipRequest {
  std::string prefix;  // of the segments looked at
  std::optional<Rank> rank;
  std::optional<SlotId> slot;
  Region region = Region::kData;
  std::optional<uint64_t> offset;  // within the region; absent: its middle
  uint32_t bit = 0;                // 0..7
};

struct FlipResult {
  std::string segment;
  SlotId slot;
  Rank rank;
  Version version;
  uint64_t region_offset = 0;
  uint64_t segment_offset = 0;
  uint8_t before = 0;
  uint8_t after = 0;
};

// Flips one bit of the newest sealed slot that the request allows. NotFound when there is none;
// OutOfRange, with both numbers, for an offset beyond the bytes that the seal covers.
absl::StatusOr<FlipResult> FlipBit(SegmentStore& store, const FlipRequest& request);

}  // namespace unreft::cli
