#include "snapshot/registered_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace unreft::snapshot {

absl::StatusOr<std::shared_ptr<const CaptureLayout>> LayoutFor(
    const Registered& registered, const layout::TensorTable& table,
    const std::vector<ShardMemory>& memory, const CaptureOptions& options) {
  if (absl::Status status = registered.status.ToStatus(); !status.ok()) return status;
  const auto mode = static_cast<layout::CaptureMode>(registered.capture_mode);
  const bool known = mode == layout::CaptureMode::kSharded || mode == layout::CaptureMode::kFull;
  if (!known || !std::has_single_bit(registered.block_bytes)) {
    return absl::FailedPreconditionError(
        fmt::format("the daemon asks for capture mode {} with blocks of {} bytes",
                    registered.capture_mode, registered.block_bytes));
  }
  const bool on_device = std::any_of(memory.begin(), memory.end(),
                                     [](const ShardMemory& shard) { return shard.on_device; });
  auto layout = CaptureLayout::Make(
      table, memory,
      {.mode = mode,
       .block_bytes = registered.block_bytes,
       .bucket_bytes = on_device ? options.device_bucket_bytes : options.bucket_bytes,
       .replica_check_every = registered.replica_check_every,
       .checksum = options.device_checksum});
  if (layout->plan().digest() != registered.layout_digest) {
    return absl::FailedPreconditionError(
        fmt::format("the daemon's capture plan has digest {:016x}, this client's {:016x}: their "
                    "releases do not fit together; use unreftd and libunreft of the same",
                    registered.layout_digest, layout->plan().digest()));
  }
  for (const WireSlotRegion& slot : registered.slots) {
    if (slot.data_capacity >= layout->padded_bytes()) continue;
    return absl::ResourceExhaustedError(
        fmt::format("the state needs {} bytes of shared memory, the daemon gives {}",
                    layout->padded_bytes(), slot.data_capacity));
  }
  return layout;
}

}  // namespace unreft::snapshot
