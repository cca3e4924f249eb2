#include "durable/weight_writer.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "durable/checked_data.h"
#include "durable/copy_record.h"
#include "durable/row_major.h"
#include "durable/weight_plan.h"
#include "layout/memory_order.h"

namespace unreft::durable {
namespace {

constexpr uint64_t kReorderBytes = uint64_t{1} << 20;  // at once, where the order allows

// Appends what a rank has to its files, and tells how far that is.
class EntryWriter {
 public:
  EntryWriter(SlabReader& slab, OnProgress on_progress, uint64_t bytes)
      : manifest_(slab.manifest()), data_(slab), on_progress_(on_progress), bytes_(bytes) {}

  absl::Status Append(ColdFile& file, std::span<const std::byte> bytes) {
    if (absl::Status status = file.Append(bytes); !status.ok()) return status;
    written_ += bytes.size();
    if (on_progress_(written_, bytes_)) return absl::OkStatus();
    return absl::CancelledError("the copy was cancelled");
  }

  // The CRC32C of the entry's data, as they are written.
  absl::StatusOr<uint32_t> Write(const WeightEntry& entry, ColdFile& file) {
    const TensorSpec& stored = manifest_.tensors[entry.from.tensor];
    const OrderedArray array{entry.from.box.extent, layout::ToLogical(stored).order,
                             DtypeBytes(stored.dtype)};
    return array.order.empty() ? WriteAsItLies(entry.from, file)
                               : WriteReordered(entry.from, array, file);
  }

 private:
  absl::StatusOr<uint32_t> WriteAsItLies(const CopiedBox& from, ColdFile& file) {
    uint32_t crc = Crc32c({});
    for (uint64_t done = 0; done < from.bytes;) {
      const auto piece = data_.At(from.slab_offset + done, from.bytes - done);
      if (!piece.ok()) return piece.status();
      crc = piece->ExtendCrc(crc);
      if (absl::Status status = Append(file, piece->bytes); !status.ok()) return status;
      done += piece->bytes.size();
    }
    return crc;
  }

  absl::StatusOr<uint32_t> WriteReordered(const CopiedBox& from, const OrderedArray& array,
                                          ColdFile& file) {
    const uint64_t at_once = AtOnceBytes(array);
    const uint64_t stretch = std::max<uint64_t>(kReorderBytes / at_once, 1) * at_once;
    std::vector<std::byte> lying;
    std::vector<std::byte> row_major;
    uint32_t crc = Crc32c({});
    for (uint64_t done = 0; done < from.bytes; done += lying.size()) {
      lying.resize(std::min(stretch, from.bytes - done));
      row_major.resize(lying.size());
      if (absl::Status status = data_.Read(from.slab_offset + done, lying); !status.ok()) {
        return status;
      }
      ToRowMajor(array, lying, row_major);
      crc = Crc32cExtend(crc, row_major);
      if (absl::Status status = Append(file, row_major); !status.ok()) return status;
    }
    return crc;
  }

  const layout::SlotManifest& manifest_;
  CheckedData data_;
  const OnProgress on_progress_;
  const uint64_t bytes_;  // of all files of the rank
  uint64_t written_ = 0;
};

}  // namespace

absl::Status WriteWeights(SlabReader& slab, ColdStore& store, const std::string& id,
                          const WeightNames& names, OnProgress on_progress) {
  const layout::SlotManifest& manifest = slab.manifest();
  const absl::StatusOr<WeightPlan> plan = PlanWeights(manifest, names);
  if (!plan.ok()) return plan.status();
  CopySlab record;
  record.set_id(id);
  record.set_rank(manifest.rank.value);
  record.set_manifest(slab.manifest_bytes());
  record.set_format(CopyOrder::SAFETENSORS);
  EntryWriter writer(slab, on_progress, plan->bytes);
  for (const WeightFile& planned : plan->files) {
    absl::StatusOr<std::unique_ptr<ColdFile>> file = store.Create(planned.name);
    if (!file.ok()) return file.status();
    absl::Status status = writer.Append(**file, std::as_bytes(std::span(planned.header)));
    if (!status.ok()) return status;
    for (const WeightEntry& entry : planned.entries) {
      const absl::StatusOr<uint32_t> crc = writer.Write(entry, **file);
      if (!crc.ok()) return crc.status();
      record.add_item_crcs(*crc);
    }
    if ((*file)->bytes() != planned.bytes) {
      return absl::InternalError(fmt::format("{}: {} bytes were written, needed {}", planned.name,
                                             (*file)->bytes(), planned.bytes));
    }
    if (status = (*file)->Finish(); !status.ok()) return status;
    CopyFile& written = *record.add_files();
    written.set_name(planned.name);
    written.set_bytes(planned.bytes);
  }
  return store.Put(SlabFile(manifest.rank), EncodeSlab(record));
}

}  // namespace unreft::durable
