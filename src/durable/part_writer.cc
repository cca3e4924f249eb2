#include "durable/part_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "durable/copy_record.h"
#include "durable/torch_archive.h"

namespace unreft::durable {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The data of a slab in pieces of one block at most, each checked before it is given out.
class CheckedData {
 public:
  explicit CheckedData(SlabReader& slab)
      : slab_(slab), block_bytes_(slab.manifest().block_bytes), buffer_(block_bytes_) {}

  // From `offset` on, `bytes` at most: as many as the block there has. Valid until the next call.
  absl::StatusOr<std::span<const std::byte>> At(uint64_t offset, uint64_t bytes) {
    const uint64_t block = offset / block_bytes_;
    if (block_ != block) {
      block_ = kNone;
      if (absl::Status status = slab_.Read(block, buffer_); !status.ok()) return status;
      block_ = block;
    }
    const uint64_t within = offset % block_bytes_;
    return std::span<const std::byte>(buffer_).subspan(within,
                                                       std::min(bytes, block_bytes_ - within));
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  SlabReader& slab_;
  const uint64_t block_bytes_;
  std::vector<std::byte> buffer_;
  uint64_t block_ = kNone;  // that is in the buffer
};

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
    zip_crc = ZipCrc32(*piece, zip_crc);
    crc = Crc32cExtend(crc, *piece);
    if (absl::Status status = file.Append(*piece); !status.ok()) return status;
    done += piece->size();
  }
  if (absl::Status status = file.Append(BytesOf(ArchiveTail(archive, zip_crc))); !status.ok()) {
    return status;
  }
  return crc;
}

}  // namespace

absl::Status CheckOrder(ColdStore& store, const PartOrder& order) {
  const absl::StatusOr<std::string> bytes = store.Get(kOrderFile, kRecordBytesMax);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<CopyOrder> found =
      DecodeOrder(*bytes, fmt::format("{}/{}", store.Describe(), kOrderFile));
  if (!found.ok()) return found.status();
  if (found->id() == order.id) return absl::OkStatus();
  return absl::NotFoundError(fmt::format("{}: it has the order of another copy, of step {}",
                                         store.Describe(), found->step()));
}

absl::Status WriteSlab(SlabReader& slab, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress) {
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

absl::Status WritePart(SegmentStore& segments, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress) {
  const absl::StatusOr<std::map<Rank, std::string>> sealed =
      FindSealed(segments, order.job, order.place, order.version);
  if (!sealed.ok()) return sealed.status();
  std::vector<std::unique_ptr<SealedSlab>> slabs;
  std::vector<uint64_t> missing;
  uint64_t bytes = 0;
  for (const Rank rank : order.ranks) {
    const auto name = sealed->find(rank);
    if (name == sealed->end()) {
      missing.push_back(rank.value);
      continue;
    }
    auto slab = SealedSlab::Open(segments, name->second, rank, order.version);
    if (!slab.ok()) return slab.status();
    const absl::StatusOr<CopyPlan> plan = PlanCopy((*slab)->manifest(), order.item_bytes_max);
    if (!plan.ok()) return plan.status();
    bytes += plan->file_bytes;
    slabs.push_back(*std::move(slab));
  }
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "version {} is not in this node's memory any more: needed the slabs of ranks {}, found "
        "none of ranks {}",
        order.version, fmt::join(order.ranks, ", "), fmt::join(missing, ", ")));
  }
  uint64_t before = 0;
  (void)on_progress(0, bytes);
  for (const std::unique_ptr<SealedSlab>& slab : slabs) {
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
