#include "durable/part_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "durable/checked_data.h"
#include "durable/copy_record.h"
#include "durable/torch_archive.h"
#include "durable/weight_plan.h"
#include "durable/weight_writer.h"

namespace unreft::durable {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Writes one item; its data's CRC32C.
absl::StatusOr<uint32_t> WriteItem(CheckedData& data, const TensorSpec& spec, const CopyItem& item,
                                   ColdFile& file) {
  const ArchiveTensor archive = ArchiveOf(spec, item.box);
  if (absl::Status status = file.Append(BytesOf(ArchiveHead(archive))); !status.ok()) {
    return status;
  }
  uint32_t zip_crc = 0;
  uint32_t crc = Crc32c({});
  for (uint64_t done = 0; done < item.bytes;) {
    const auto piece = data.At(item.slab_offset + done, item.bytes - done);
    if (!piece.ok()) return piece.status();
    zip_crc = ZipCrc32(piece->bytes, zip_crc);
    crc = piece->ExtendCrc(crc);
    if (absl::Status status = file.Append(piece->bytes); !status.ok()) return status;
    done += piece->bytes.size();
  }
  if (absl::Status status = file.Append(BytesOf(ArchiveTail(archive, zip_crc))); !status.ok()) {
    return status;
  }
  return crc;
}

// Of what the rank has in the copy.
absl::StatusOr<uint64_t> FileBytes(const layout::SlotManifest& manifest, const PartOrder& order) {
  if (order.weights) {
    const absl::StatusOr<WeightPlan> plan = PlanWeights(manifest, *order.weights);
    if (!plan.ok()) return plan.status();
    return plan->bytes;
  }
  const absl::StatusOr<CopyPlan> plan = PlanCopy(manifest, order.item_bytes_max);
  if (!plan.ok()) return plan.status();
  return plan->file_bytes;
}

}  // namespace

absl::StatusOr<CopyOrder> ReadOrder(ColdStore& store, const PartOrder& order) {
  const absl::StatusOr<std::string> bytes = store.Get(kOrderFile, kRecordBytesMax);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<CopyOrder> found =
      DecodeOrder(*bytes, fmt::format("{}/{}", store.Describe(), kOrderFile));
  if (!found.ok() || found->id() == order.id) return found;
  return absl::NotFoundError(fmt::format("{}: it has the order of another copy, of step {}",
                                         store.Describe(), found->step()));
}

absl::Status WriteSlab(SlabReader& slab, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress) {
  if (order.weights) return WriteWeights(slab, store, order.id, *order.weights, on_progress);
  const layout::SlotManifest& manifest = slab.manifest();
  const absl::StatusOr<CopyPlan> plan = PlanCopy(manifest, order.item_bytes_max);
  if (!plan.ok()) return plan.status();
  CopySlab record;
  record.set_id(order.id);
  record.set_rank(manifest.rank.value);
  record.set_manifest(slab.manifest_bytes());
  record.set_extras(slab.extras());
  record.set_file(ItemsFile(manifest.rank));
  record.set_file_bytes(plan->file_bytes);
  record.set_item_bytes_max(order.item_bytes_max);
  absl::StatusOr<std::unique_ptr<ColdFile>> file = store.Create(record.file());
  if (!file.ok()) return file.status();
  CheckedData data(slab);
  for (const CopyItem& item : plan->items) {
    const auto crc = WriteItem(data, manifest.tensors[item.tensor], item, **file);
    if (!crc.ok()) return crc.status();
    record.add_item_crcs(*crc);
    if (!on_progress((*file)->bytes(), plan->file_bytes)) {
      return absl::CancelledError("the copy was cancelled");
    }
  }
  if ((*file)->bytes() != plan->file_bytes) {
    return absl::InternalError(fmt::format("{}: {} bytes were written, needed {}", record.file(),
                                           (*file)->bytes(), plan->file_bytes));
  }
  if (absl::Status status = (*file)->Finish(); !status.ok()) return status;
  return store.Put(SlabFile(manifest.rank), EncodeSlab(record));
}

absl::StatusOr<std::vector<std::unique_ptr<SealedSlab>>> OpenSlabs(SegmentStore& segments,
                                                                   const PartOrder& order) {
  absl::StatusOr<std::map<Rank, std::string>> sealed =
      FindSealed(segments, order.job, order.place, order.version);
  if (!sealed.ok()) return sealed.status();
  sealed->insert(order.decoded.begin(), order.decoded.end());
  std::vector<std::unique_ptr<SealedSlab>> slabs;
  std::vector<uint64_t> missing;
  for (const Rank rank : order.ranks) {
    const auto name = sealed->find(rank);
    if (name == sealed->end()) {
      missing.push_back(rank.value);
      continue;
    }
    auto slab = SealedSlab::Open(segments, name->second, rank, order.version);
    if (!slab.ok()) return slab.status();
    slabs.push_back(*std::move(slab));
  }
  if (missing.empty()) return slabs;
  return absl::FailedPreconditionError(fmt::format(
      "version {} is not in this node's memory any more: needed the slabs of ranks {}, found "
      "none of ranks {}",
      order.version, fmt::join(order.ranks, ", "), fmt::join(missing, ", ")));
}

absl::Status WritePart(SegmentStore& segments, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress) {
  const auto slabs = OpenSlabs(segments, order);
  if (!slabs.ok()) return slabs.status();
  uint64_t bytes = 0;
  for (const std::unique_ptr<SealedSlab>& slab : *slabs) {
    const absl::StatusOr<uint64_t> of_slab = FileBytes(slab->manifest(), order);
    if (!of_slab.ok()) return of_slab.status();
    bytes += *of_slab;
  }
  uint64_t before = 0;
  (void)on_progress(0, bytes);
  for (const std::unique_ptr<SealedSlab>& slab : *slabs) {
    uint64_t of_slab = 0;
    const absl::Status status =
        WriteSlab(*slab, store, order, [&](uint64_t written, uint64_t in_all) {
          of_slab = in_all;
          return on_progress(before + written, bytes);
        });
    if (!status.ok()) return status;
    before += of_slab;
  }
  return absl::OkStatus();
}

}  // namespace unreft::durable
