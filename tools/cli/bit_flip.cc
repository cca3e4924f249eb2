#include "tools/cli/bit_flip.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/slot_header.h"

namespace unreft::cli {
namespace {

// A sealed slot and its mapping.
struct Candidate {
  std::unique_ptr<Segment> segment;
  SlotView view;
  SlotGrant grant;
  SlotSeal seal;

  Version version() const { return {Timeline{seal.timeline}, Step{seal.step}}; }
};

// Nothing unless the segment is a sealed slot that the request allows.
std::optional<Candidate> Look(SegmentStore& store, const std::string& name,
                              const FlipRequest& request) {
  absl::StatusOr<std::unique_ptr<Segment>> segment = store.Open(name, Access::kReadWrite);
  if (!segment.ok() || (*segment)->bytes().size() < kSegmentPage) return std::nullopt;
  absl::StatusOr<SlotView> view = SlotView::Check((*segment)->bytes());
  if (!view.ok() || view->state().state != SlotState::kSealed) return std::nullopt;
  const absl::StatusOr<SlotGrant> grant = view->CheckedGrant();
  const absl::StatusOr<SlotSeal> seal = view->CheckedSeal();
  if (!grant.ok() || !seal.ok()) return std::nullopt;
  if (request.rank && request.rank->value != grant->rank) return std::nullopt;
  if (request.slot && request.slot->value != view->geometry().slot_id) return std::nullopt;
  return Candidate{std::move(*segment), *view, *grant, *seal};
}

// Where the region begins in the segment, and how many of its bytes the seal covers.
std::pair<uint64_t, uint64_t> Extent(const Candidate& slot, Region region) {
  const SlotGeometry& geometry = slot.view.geometry();
  switch (region) {
    case Region::kData:
      return {geometry.data_offset, slot.seal.data_bytes};
    case Region::kExtras:
      return {geometry.extras_offset, slot.seal.extras_bytes};
    case Region::kManifest:
      return {geometry.manifest_offset, slot.seal.manifest_bytes};
    case Region::kHeader:
      return {0, sizeof(SlotHeader)};
  }
  return {0, 0};
}

absl::StatusOr<FlipResult> Flip(Candidate& slot, const FlipRequest& request) {
  const auto [begin, length] = Extent(slot, request.region);
  const uint64_t offset = request.offset.value_or(length / 2);
  if (offset >= length) {
    return absl::OutOfRangeError(
        fmt::format("{}: offset {} of a region of {} bytes", slot.segment->name(), offset, length));
  }
  std::byte& byte = slot.segment->bytes()[begin + offset];
  FlipResult result{.segment = slot.segment->name(),
                    .slot = SlotId{slot.view.geometry().slot_id},
                    .rank = Rank{slot.grant.rank},
                    .version = slot.version(),
                    .region_offset = offset,
                    .segment_offset = begin + offset,
                    .before = static_cast<uint8_t>(byte)};
  byte ^= std::byte{1} << request.bit;
  result.after = static_cast<uint8_t>(byte);
  return result;
}

}  // namespace

absl::StatusOr<FlipResult> FlipBit(SegmentStore& store, const FlipRequest& request) {
  absl::StatusOr<std::vector<SegmentInfo>> segments = store.List(request.prefix);
  if (!segments.ok()) return segments.status();
  std::optional<Candidate> newest;
  for (const SegmentInfo& info : *segments) {
    std::optional<Candidate> found = Look(store, info.name, request);
    if (found && (!newest || newest->version() < found->version())) newest = std::move(found);
  }
  if (!newest) {
    return absl::NotFoundError(fmt::format("no sealed slot to damage among the {} segments {}*",
                                           segments->size(), request.prefix));
  }
  return Flip(*newest, request);
}

}  // namespace unreft::cli
