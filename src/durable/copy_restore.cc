#include "durable/copy_restore.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/format.h"
#include "base/slot_header.h"
#include "durable/copy_reader.h"
#include "durable/copy_shelf.h"
#include "durable/slab_loader.h"

namespace unreft::durable {
namespace {

constexpr int kFoundMax = 64;

absl::StatusOr<CopyReader> OpenCopy(ColdStore& store, const CopyPartRequest& request) {
  absl::StatusOr<CopyReader> copy = CopyReader::Open(store);
  if (!copy.ok()) return copy;
  const CopyOrder& order = copy->order();
  const Version needed = {Timeline{request.timeline()}, Step{request.step()}};
  const Version found = {Timeline{order.timeline()}, Step{order.step()}};
  if (found == needed && order.world() == request.world()) return copy;
  return absl::FailedPreconditionError(
      fmt::format("{}: needed a copy of version {} of {} ranks, found {} of {}", store.Describe(),
                  needed, request.world(), found, order.world()));
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void CopyInto(std::span<std::byte> region, const std::string& bytes) {
  if (!bytes.empty()) std::memcpy(region.data(), bytes.data(), bytes.size());
}

absl::StatusOr<LoadedSlab> FillSlot(CopyReader& copy, SegmentStore& segments, const CopySlot& into,
                                    OnProgress on_progress) {
  const auto segment = segments.Open(into.segment(), Access::kReadWrite);
  if (!segment.ok()) return segment.status();
  absl::StatusOr<SlotView> view = SlotView::Check((*segment)->bytes());
  if (!view.ok()) return view.status();
  const SlotStateWord word = view->state();
  if (word.generation.value != into.generation() || word.state == SlotState::kSealed) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: needed generation {}, found {}", into.segment(), into.generation(), word.generation));
  }
  const absl::StatusOr<CopySlab> slab = copy.Describe(Rank{into.rank()});
  if (!slab.ok()) return slab.status();
  const absl::StatusOr<SlabItems> items = copy.ItemsOf(*slab);
  if (!items.ok()) return items.status();
  const layout::SlotManifest& manifest = items->manifest;
  const uint64_t block_bytes = view->geometry().block_bytes;
  const uint64_t blocks = BlockCount(manifest.data_bytes, block_bytes);
  if (manifest.block_bytes != block_bytes || blocks * block_bytes > view->data().size() ||
      blocks * sizeof(uint32_t) > view->crc_table().size() ||
      slab->manifest().size() > view->manifest().size() ||
      slab->extras().size() > view->extras().size()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it has no room for the slab of rank {}: {} blocks of {} bytes",
                    into.segment(), into.rank(), blocks, manifest.block_bytes));
  }
  const std::span<std::byte> data = view->data().first(blocks * block_bytes);
  if (absl::Status status = LoadSlab(copy, *slab, data, on_progress); !status.ok()) return status;
  const std::vector<uint32_t> crcs = BlockCrcs(data, block_bytes, blocks);
  const std::string table(reinterpret_cast<const char*>(crcs.data()),
                          crcs.size() * sizeof(uint32_t));
  CopyInto(view->crc_table(), table);
  CopyInto(view->manifest(), slab->manifest());
  CopyInto(view->extras(), slab->extras());
  LoadedSlab loaded;
  loaded.set_rank(into.rank());
  loaded.set_layout_digest(manifest.layout_digest);
  loaded.set_data_bytes(manifest.data_bytes);
  loaded.set_manifest_bytes(slab->manifest().size());
  loaded.set_extras_bytes(slab->extras().size());
  loaded.set_manifest_crc(Crc32c(BytesOf(slab->manifest())));
  loaded.set_extras_crc(Crc32c(BytesOf(slab->extras())));
  loaded.set_crc_table_crc(Crc32c(BytesOf(table)));
  return loaded;
}

}  // namespace

absl::StatusOr<CopyPartReply> SearchShelf(ColdStore& shelf, const std::string& directory,
                                          const std::string& job) {
  const absl::StatusOr<std::vector<ShelvedCopy>> copies = ListCopies(shelf, job);
  if (!copies.ok()) return copies.status();
  CopyPartReply reply;
  reply.set_is_done(true);
  for (const ShelvedCopy& copy : *copies) {
    if (!copy.is_complete || reply.found_size() == kFoundMax) continue;
    FoundCopy& found = *reply.add_found();
    found.set_directory(fmt::format("{}/{}", directory, copy.name));
    *found.mutable_order() = copy.order;
  }
  const absl::StatusOr<std::vector<std::string>> unreadable = UnreadableCopies(shelf);
  if (!unreadable.ok()) return unreadable.status();
  for (const std::string& name : *unreadable) {
    if (reply.found_size() == kFoundMax) break;
    reply.add_found()->set_directory(fmt::format("{}/{}", directory, name));
  }
  return reply;
}

absl::StatusOr<CopyPartReply> DescribeSlabs(ColdStore& store, const CopyPartRequest& order) {
  const absl::StatusOr<CopyReader> copy = OpenCopy(store, order);
  if (!copy.ok()) return copy.status();
  CopyPartReply reply;
  reply.set_is_done(true);
  for (const uint64_t rank : order.ranks()) {
    const absl::StatusOr<CopySlab> slab = copy->Describe(Rank{rank});
    if (!slab.ok()) return slab.status();
    const absl::StatusOr<SlabItems> items = copy->ItemsOf(*slab);
    if (!items.ok()) return items.status();
    const layout::SlotManifest& manifest = items->manifest;
    CopySlabSize& size = *reply.add_sizes();
    size.set_rank(rank);
    size.set_world(manifest.world);
    size.set_attempt(manifest.attempt.value);
    size.set_parent_timeline(manifest.parent.timeline.value);
    size.set_parent_step(manifest.parent.step.value);
    size.set_block_bytes(manifest.block_bytes);
    size.set_data_bytes(manifest.data_bytes);
    size.set_manifest_bytes(slab->manifest().size());
    size.set_extras_bytes(slab->extras().size());
  }
  return reply;
}

absl::StatusOr<CopyPartReply> FillSlots(ColdStore& store, SegmentStore& segments,
                                        const CopyPartRequest& order, OnProgress on_progress) {
  absl::StatusOr<CopyReader> copy = OpenCopy(store, order);
  if (!copy.ok()) return copy.status();
  CopyPartReply reply;
  reply.set_is_done(true);
  uint64_t before = 0;  // bytes of the slabs that are there
  for (const CopySlot& into : order.into()) {
    uint64_t of_slab = 0;
    const auto loaded = FillSlot(*copy, segments, into, [&](uint64_t written, uint64_t bytes) {
      of_slab = bytes;
      return on_progress(before + written, 0);
    });
    if (!loaded.ok()) return loaded.status();
    before += of_slab;
    *reply.add_loaded() = *loaded;
  }
  reply.set_written(before);
  reply.set_bytes(before);
  return reply;
}

}  // namespace unreft::durable
