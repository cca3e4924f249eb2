// What a sealed slot holds, read and checked against its CRCs. Pure functions of the slot's bytes.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/slot_header.h"
#include "layout/manifest.h"
#include "smp/memory/slot_reading.h"

namespace unreft::smp {

// The CRCs of the slot's blocks, 4 bytes each, if it has so many bytes of data.
std::span<const std::byte> CrcTableOf(SlotView view, uint64_t data_bytes);

// Which part of a slot one of several readers reads.
struct SlotShare {
  uint64_t index = 0;
  uint64_t count = 1;
};

// Reads everything that a sealed slot holds again: state, grant, seal, every block, extras,
// manifest, CRC table. Not the geometry, which the view has and can mend. Of several shares each
// has its part of the blocks, and the first one all else. DataLoss naming the slot, the block and
// both CRCs; Aborted when `reading` was stopped. Reads only, of a slot that nobody writes to
// meanwhile.
absl::Status VerifySlot(SlotView view, const SlotReading& reading = SlotReading(),
                        SlotShare share = {});

// The manifest of a sealed slot, checked against its CRC and its seal.
absl::StatusOr<layout::SlotManifest> ReadManifest(SlotView view);

}  // namespace unreft::smp
