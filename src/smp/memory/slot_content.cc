#include "smp/memory/slot_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/crc32c.h"
#include "base/format.h"

namespace unreft::smp {
namespace {

// Verifying looks so often whether it is to stop: a tenth of a millisecond.
constexpr size_t kBytesBetweenLooks = 1 << 20;

absl::Status WrongCrc(const SlotView& view, std::string_view what, uint32_t needed,
                      uint32_t found) {
  return absl::DataLossError(fmt::format("slot {}: {} has CRC {:08x}, needed {:08x}",
                                         view.geometry().slot_id, what, found, needed));
}

absl::Status Stopped(const SlotView& view) {
  return absl::AbortedError(
      fmt::format("slot {}: it was freed while it was read", view.geometry().slot_id));
}

absl::StatusOr<layout::SlotManifest> ReadManifest(SlotView view, const SlotSeal& seal) {
  const auto bytes = view.manifest().first(seal.manifest_bytes);
  if (const uint32_t crc = Crc32c(bytes); crc != seal.manifest_crc) {
    return WrongCrc(view, "manifest", seal.manifest_crc, crc);
  }
  absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!manifest.ok()) return manifest;
  const Version sealed{Timeline{seal.timeline}, Step{seal.step}};
  if (manifest->version != sealed || manifest->data_bytes != seal.data_bytes ||
      manifest->block_bytes != view.geometry().block_bytes) {
    return absl::DataLossError(fmt::format("slot {}: manifest of version {}, seal of version {}",
                                           view.geometry().slot_id, manifest->version, sealed));
  }
  return manifest;
}

// The CRC of what may be large; that of a part when the reading was stopped.
uint32_t CrcUntilStopped(std::span<const std::byte> bytes, const SlotReading& reading) {
  uint32_t crc = Crc32c({});
  for (size_t at = 0; at < bytes.size() && !reading.stopped(); at += kBytesBetweenLooks) {
    crc = Crc32cExtend(crc, bytes.subspan(at, std::min(kBytesBetweenLooks, bytes.size() - at)));
  }
  return crc;
}

// What a seal vouches for besides the blocks: manifest, extras and the CRC table.
absl::Status VerifyDescription(SlotView view, const SlotSeal& seal,
                               std::span<const std::byte> table, const SlotReading& reading) {
  absl::StatusOr<layout::SlotManifest> manifest = ReadManifest(view, seal);
  if (!manifest.ok()) return manifest.status();
  const uint32_t extras_crc = CrcUntilStopped(view.extras().first(seal.extras_bytes), reading);
  const uint32_t table_crc = CrcUntilStopped(table, reading);
  if (reading.stopped()) return Stopped(view);
  if (extras_crc != seal.extras_crc) return WrongCrc(view, "extras", seal.extras_crc, extras_crc);
  if (table_crc != seal.crc_table_crc) {
    return WrongCrc(view, "CRC table", seal.crc_table_crc, table_crc);
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const std::byte> CrcTableOf(SlotView view, uint64_t data_bytes) {
  const uint64_t blocks = BlockCount(data_bytes, view.geometry().block_bytes);
  return view.crc_table().first(blocks * sizeof(uint32_t));
}

absl::StatusOr<layout::SlotManifest> ReadManifest(SlotView view) {
  absl::StatusOr<SlotSeal> seal = view.CheckedSeal();
  if (!seal.ok()) return seal.status();
  return ReadManifest(view, *seal);
}

absl::Status VerifySlot(SlotView view, const SlotReading& reading, SlotShare share) {
  if (view.state().state != SlotState::kSealed) {
    return absl::DataLossError(fmt::format("slot {}: needed state sealed, found {}",
                                           view.geometry().slot_id,
                                           SlotStateName(view.state().state)));
  }
  if (absl::StatusOr<SlotGrant> grant = view.CheckedGrant(); !grant.ok()) return grant.status();
  // Once: what rots between two looks would be believed.
  const absl::StatusOr<SlotSeal> seal = view.CheckedSeal();
  if (!seal.ok()) return seal.status();
  const std::span<const std::byte> table = CrcTableOf(view, seal->data_bytes);
  if (share.index == 0) {
    const absl::Status status = VerifyDescription(view, *seal, table, reading);
    if (!status.ok()) return status;
  }
  const uint64_t blocks = table.size() / sizeof(uint32_t);
  const uint64_t end = blocks * (share.index + 1) / share.count;
  for (uint64_t block = blocks * share.index / share.count; block < end; ++block) {
    if (reading.stopped()) return Stopped(view);
    uint32_t needed = 0;
    std::memcpy(&needed, table.data() + block * sizeof(needed), sizeof(needed));
    if (const uint32_t crc = Crc32c(view.block(block)); crc != needed) {
      return WrongCrc(view, fmt::format("block {}", block), needed, crc);
    }
  }
  return absl::OkStatus();
}

}  // namespace unreft::smp
