#include "durable/sealed_slab.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"

namespace unreft::durable {
namespace {

absl::Status WrongCrc(const std::string& slot, std::string_view what, uint32_t needed,
                      uint32_t found) {
  return absl::DataLossError(
      fmt::format("{}: {} has CRC {:08x}, needed {:08x}", slot, what, found, needed));
}

// A private copy of bytes that another process may write to, if they have that CRC.
absl::StatusOr<std::string> CheckedCopy(std::span<const std::byte> bytes, uint32_t needed,
                                        const std::string& slot, std::string_view what) {
  std::string copy(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const uint32_t found = Crc32c(std::as_bytes(std::span(copy)));
  if (found != needed) return WrongCrc(slot, what, needed, found);
  return copy;
}

absl::StatusOr<SlotView> ViewOf(Segment& segment) {
  absl::StatusOr<SlotView> view = SlotView::Check(segment.bytes());
  if (view.ok()) return view;
  return absl::Status(view.status().code(),
                      fmt::format("{}: {}", segment.name(), view.status().message()));
}

// The version and rank that the slot has sealed now; none if it is not sealed.
std::optional<std::pair<Rank, Version>> SealedIn(const SlotView& view) {
  if (view.state().state != SlotState::kSealed) return std::nullopt;
  const absl::StatusOr<SlotGrant> grant = view.CheckedGrant();
  const absl::StatusOr<SlotSeal> seal = view.CheckedSeal();
  if (!grant.ok() || !seal.ok()) return std::nullopt;
  return std::pair(Rank{grant->rank}, Version{Timeline{seal->timeline}, Step{seal->step}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<SealedSlab>> SealedSlab::Open(SegmentStore& segments,
                                                             const std::string& name, Rank rank,
                                                             Version version) {
  absl::StatusOr<std::unique_ptr<Segment>> segment = segments.Open(name, Access::kReadOnly);
  if (!segment.ok()) return segment.status();
  const absl::StatusOr<SlotView> view = ViewOf(**segment);
  if (!view.ok()) return view.status();
  std::unique_ptr<SealedSlab> slab(new SealedSlab(*std::move(segment), *view));
  if (absl::Status status = slab->ReadDescription(rank, version); !status.ok()) return status;
  return slab;
}

absl::Status SealedSlab::ReadDescription(Rank rank, Version version) {
  const std::string& name = segment_->name();
  const auto sealed = SealedIn(view_);
  if (!sealed || *sealed != std::pair(rank, version)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it does not have version {} of rank {} any more", name, version, rank));
  }
  const absl::StatusOr<SlotSeal> seal = view_.CheckedSeal();
  if (!seal.ok()) return seal.status();
  const uint64_t blocks = BlockCount(seal->data_bytes, view_.geometry().block_bytes);
  if (seal->manifest_bytes > view_.manifest().size() ||
      seal->extras_bytes > view_.extras().size() ||
      blocks * sizeof(uint32_t) > view_.crc_table().size() ||
      seal->data_bytes > view_.data().size()) {
    return absl::DataLossError(fmt::format("{}: its seal names more bytes than it has", name));
  }
  auto manifest = CheckedCopy(view_.manifest().first(seal->manifest_bytes), seal->manifest_crc,
                              name, "its manifest");
  if (!manifest.ok()) return manifest.status();
  auto extras =
      CheckedCopy(view_.extras().first(seal->extras_bytes), seal->extras_crc, name, "its extras");
  if (!extras.ok()) return extras.status();
  const auto table = CheckedCopy(view_.crc_table().first(blocks * sizeof(uint32_t)),
                                 seal->crc_table_crc, name, "its CRC table");
  if (!table.ok()) return table.status();
  absl::StatusOr<layout::SlotManifest> decoded = layout::DecodeManifest(*manifest);
  if (!decoded.ok()) return decoded.status();
  if (decoded->version != version || decoded->rank != rank ||
      decoded->data_bytes != seal->data_bytes ||
      decoded->block_bytes != view_.geometry().block_bytes) {
    return absl::DataLossError(fmt::format(
        "{}: its manifest is of version {} of rank {} with {} bytes, its seal of version {} of "
        "rank {} with {}",
        name, decoded->version, decoded->rank, decoded->data_bytes, version, rank,
        seal->data_bytes));
  }
  manifest_ = *std::move(decoded);
  manifest_bytes_ = *std::move(manifest);
  extras_ = *std::move(extras);
  crcs_.resize(blocks);
  if (blocks != 0) std::memcpy(crcs_.data(), table->data(), table->size());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> SealedSlab::Read(uint64_t block, std::span<std::byte> into) {
  std::memcpy(into.data(), view_.block(block).data(), view_.geometry().block_bytes);
  const uint32_t crc = Crc32c(into.first(view_.geometry().block_bytes));
  if (crc == crcs_[block]) return crc;
  const auto sealed = SealedIn(view_);
  if (!sealed || *sealed != std::pair(manifest_.rank, manifest_.version)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: version {} of rank {} was given up while it was read: its pin ended",
                    segment_->name(), manifest_.version, manifest_.rank));
  }
  return WrongCrc(segment_->name(), fmt::format("block {} of rank {}", block, manifest_.rank),
                  crcs_[block], crc);
}

absl::StatusOr<std::map<Rank, std::string>> FindSealed(SegmentStore& segments, std::string_view job,
                                                       uint64_t place, Version version) {
  const absl::StatusOr<std::vector<SegmentInfo>> all =
      segments.List(SegmentPrefix(job, place) + "slot");
  if (!all.ok()) return all.status();
  std::map<Rank, std::string> found;
  for (const SegmentInfo& info : *all) {
    // One that has gone meanwhile, or is broken, is no slot of the version: who needs it says so.
    absl::StatusOr<std::unique_ptr<Segment>> segment =
        segments.Open(info.name, Access::kReadOnly, 0, kSegmentPage);
    if (!segment.ok()) continue;
    SlotHeader header;
    std::memcpy(static_cast<void*>(&header), (*segment)->bytes().data(), sizeof(header));
    const SlotStateWord word = SlotStateWord::Decode(header.state.load(std::memory_order_acquire));
    if (word.state != SlotState::kSealed || !BodyCrcIsRight(header.grant) ||
        !BodyCrcIsRight(header.seal) || header.seal.generation != word.generation.value) {
      continue;
    }
    if (Version{Timeline{header.seal.timeline}, Step{header.seal.step}} != version) continue;
    found.emplace(Rank{header.grant.rank}, info.name);
  }
  return found;
}

}  // namespace unreft::durable
