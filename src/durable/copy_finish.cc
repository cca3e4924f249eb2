#include "durable/copy_finish.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "durable/copy_check.h"
#include "durable/copy_entries.h"
#include "durable/plain_reader.h"
#include "durable/torch_archive.h"

namespace unreft::durable {
namespace {

// What was written of that rank, by its own words and those of the manifest.
absl::StatusOr<CopiedSlab> CheckSlab(ColdStore& store, const CopyOrder& order, const CopySlab& slab,
                                     Rank rank) {
  const auto lost = [&](const std::string& why) { return LostSlab(rank, why); };
  absl::StatusOr<layout::SlotManifest> manifest = ManifestOf(order, slab, rank);
  if (!manifest.ok()) return manifest.status();
  if (slab.item_bytes_max() < kItemBytesMin || slab.item_bytes_max() > kItemBytesMax) {
    return lost(fmt::format("needed items of {} to {} bytes at most, found {}", kItemBytesMin,
                            kItemBytesMax, slab.item_bytes_max()));
  }
  absl::StatusOr<CopyPlan> plan = PlanCopy(*manifest, slab.item_bytes_max());
  if (!plan.ok()) return plan.status();
  if (slab.file() != ItemsFile(rank) ||
      slab.item_crcs_size() != static_cast<int64_t>(plan->items.size())) {
    return lost(fmt::format("{}: needed {} items, found {}", ItemsFile(rank), plan->items.size(),
                            slab.item_crcs_size()));
  }
  const absl::Status status = CheckBytes(store, slab.file(), plan->file_bytes);
  if (absl::IsDataLoss(status)) return lost(std::string(status.message()));
  if (!status.ok()) return status;
  CopiedSlab copied{*std::move(manifest), *std::move(plan), slab.file(), slab.extras(), {}};
  if (AreDcpExtras(copied.extras)) {
    absl::StatusOr<DcpExtras> saved = ReadDcpExtras(copied.extras);
    if (!saved.ok()) return lost(std::string(saved.status().message()));
    copied.saved = *std::move(saved);
  }
  return copied;
}

// The values, one behind the other in a file of their own.
absl::Status WriteValues(ColdStore& store, std::vector<ValueEntry> values,
                         std::vector<DcpEntry>& entries, FinishedCopy& finished) {
  absl::StatusOr<std::unique_ptr<ColdFile>> file = store.Create(kValuesFile);
  if (!file.ok()) return file.status();
  for (ValueEntry& value : values) {
    const absl::StatusOr<std::string> archive =
        value.serialised ? *std::move(value.serialised) : ArchiveOfValue(value.value);
    if (!archive.ok()) {
      finished.left_out.push_back(value.name.key);
      continue;
    }
    DcpEntry entry;
    entry.key = std::move(value.name.key);
    entry.path = std::move(value.name.path);
    entry.is_tensor = false;
    entry.chunks = {{{}, {}, kValuesFile, (*file)->bytes(), archive->size()}};
    entries.push_back(std::move(entry));
    ++finished.values;
    if (absl::Status status = (*file)->Append(std::as_bytes(std::span(*archive))); !status.ok()) {
      return status;
    }
  }
  finished.bytes += (*file)->bytes();
  return (*file)->Finish();
}

absl::Status CheckKeys(const std::vector<DcpEntry>& entries) {
  const auto twice =
      std::adjacent_find(entries.begin(), entries.end(),
                         [](const DcpEntry& a, const DcpEntry& b) { return a.key == b.key; });
  if (twice == entries.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("map: two entries of the copy would both be '{}'",
                                                CleanText(twice->key, kTextBytesMax)));
}

}  // namespace

absl::StatusOr<FinishedCopy> FinishCopy(ColdStore& store, const CopyOrder& order,
                                        const KeyMap& map) {
  FinishedCopy finished;
  CopyRecord record;
  *record.mutable_order() = order;
  std::vector<CopiedSlab> slabs;
  for (uint64_t number = 0; number < order.world(); ++number) {
    const Rank rank{number};
    const absl::StatusOr<CopySlab> slab = TakeSlab(store, rank, record);
    if (!slab.ok()) return slab.status();
    absl::StatusOr<CopiedSlab> checked = CheckSlab(store, order, *slab, rank);
    if (!checked.ok()) return checked.status();
    finished.bytes += checked->plan.file_bytes;
    slabs.push_back(*std::move(checked));
  }
  absl::StatusOr<std::vector<DcpEntry>> entries = TensorEntries(slabs, map);
  if (!entries.ok()) return entries.status();
  finished.tensors = entries->size();
  for (const CopiedSlab& slab : slabs) {
    for (const auto& [name, saved] : slab.saved.catalogue) {
      if (saved.empty && !DtypeNamed(saved.empty->first)) finished.left_out.push_back(name);
    }
  }
  absl::StatusOr<std::vector<ValueEntry>> values = ValueEntries(slabs, map);
  if (!values.ok()) return values.status();
  if (absl::Status status = WriteValues(store, *std::move(values), *entries, finished);
      !status.ok()) {
    return status;
  }
  std::sort(entries->begin(), entries->end(),
            [](const DcpEntry& a, const DcpEntry& b) { return a.key < b.key; });
  if (absl::Status status = CheckKeys(*entries); !status.ok()) return status;
  if (absl::Status status = store.Put(kRecordFile, EncodeRecord(record)); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckStands(store, order); !status.ok()) return status;
  if (absl::Status status = store.Put(kMetadataFile, EncodeDcpMetadata(*entries)); !status.ok()) {
    return status;
  }
  // Of this and of who removes the copy, the later one sees what the other has done.
  if (absl::Status status = CheckStands(store, order); !status.ok()) {
    (void)store.Remove(kMetadataFile);
    return status;
  }
  return finished;
}

}  // namespace unreft::durable
