#include "durable/copy_check.h"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "durable/copy_record.h"

namespace unreft::durable {

absl::StatusOr<CopySlab> TakeSlab(ColdStore& store, Rank rank, CopyRecord& record) {
  const absl::StatusOr<std::string> bytes = store.Get(SlabFile(rank), kRecordBytesMax);
  if (!bytes.ok()) return bytes.status();
  record.add_slab_crcs(Crc32c(std::as_bytes(std::span(*bytes))));
  return DecodeSlab(*bytes, SlabFile(rank));
}

absl::Status CheckBytes(ColdStore& store, const std::string& file, uint64_t bytes) {
  std::byte last{};
  if (bytes > 0) {
    const absl::Status status = store.Read(file, bytes - 1, {&last, 1});
    if (absl::IsNotFound(status) || absl::IsOutOfRange(status)) {
      return absl::DataLossError(
          fmt::format("{}: needed {} bytes: {}", file, bytes, status.message()));
    }
    if (!status.ok()) return status;
  }
  const absl::Status beyond = store.Read(file, bytes, {&last, 1});
  if (absl::IsOutOfRange(beyond)) return absl::OkStatus();
  if (!beyond.ok()) return beyond;
  return absl::DataLossError(fmt::format("{}: needed {} bytes, found more", file, bytes));
}

absl::Status CheckStands(ColdStore& store, const CopyOrder& order) {
  const absl::StatusOr<std::string> bytes = store.Get(kOrderFile, kRecordBytesMax);
  if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
  const absl::StatusOr<CopyOrder> found =
      bytes.ok() ? DecodeOrder(*bytes, kOrderFile) : bytes.status();
  if (found.ok() && found->id() == order.id()) return absl::OkStatus();
  return absl::AbortedError(
      fmt::format("{}: the copy was removed while it was written", store.Describe()));
}

absl::Status LostSlab(Rank rank, const std::string& why) {
  return absl::DataLossError(fmt::format("rank {} of the copy: {}", rank, why));
}

absl::StatusOr<layout::SlotManifest> ManifestOf(const CopyOrder& order, const CopySlab& slab,
                                                Rank rank) {
  absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(slab.manifest());
  if (!manifest.ok()) return LostSlab(rank, std::string(manifest.status().message()));
  const Version version{Timeline{order.timeline()}, Step{order.step()}};
  if (slab.id() == order.id() && slab.rank() == rank.value && slab.format() == order.format() &&
      manifest->rank == rank && manifest->version == version && manifest->world == order.world()) {
    return manifest;
  }
  return LostSlab(
      rank, fmt::format("needed version {} of {} ranks, found version {} of rank {} of {}", version,
                        order.world(), manifest->version, manifest->rank, manifest->world));
}

}  // namespace unreft::durable
