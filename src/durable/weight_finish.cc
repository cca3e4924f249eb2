#include "durable/weight_finish.h"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "durable/copy_check.h"
#include "durable/copy_entries.h"
#include "durable/copy_record.h"
#include "durable/safetensors.h"
#include "durable/weight_plan.h"
#include "layout/memory_order.h"

namespace unreft::durable {
namespace {

// Takes in what was written of each rank, one after the other.
class WeightsOfAll {
 public:
  WeightsOfAll(ColdStore& store, const CopyOrder& order, const WeightNames& names)
      : store_(store), order_(order), names_(names) {}

  absl::Status Add(const CopySlab& slab, Rank rank) {
    const absl::StatusOr<layout::SlotManifest> manifest = ManifestOf(order_, slab, rank);
    if (!manifest.ok()) return manifest.status();
    const absl::StatusOr<WeightPlan> plan = PlanWeights(*manifest, names_);
    if (!plan.ok()) return plan.status();
    if (absl::Status status = CheckFiles(*plan, slab, rank); !status.ok()) return status;
    bytes_ += plan->bytes;
    return AddEntries(*manifest, *plan);
  }

  // By key.
  absl::StatusOr<std::vector<DcpEntry>> Whole() && { return std::move(table_).Whole(); }

  uint64_t bytes() const { return bytes_; }  // of all files
  uint64_t left_out() const { return left_out_.size(); }

 private:
  absl::Status CheckFiles(const WeightPlan& plan, const CopySlab& slab, Rank rank) {
    size_t entries = 0;
    for (const WeightFile& file : plan.files) entries += file.entries.size();
    const bool fits = std::ranges::equal(
        plan.files, slab.files(), [](const WeightFile& needed, const CopyFile& found) {
          return needed.name == found.name() && needed.bytes == found.bytes();
        });
    if (!fits || static_cast<size_t>(slab.item_crcs_size()) != entries) {
      return LostSlab(rank, fmt::format("needed {} tensors in {} files of {} bytes, found {} in {}",
                                        entries, plan.files.size(), plan.bytes,
                                        slab.item_crcs_size(), slab.files_size()));
    }
    for (const WeightFile& file : plan.files) {
      const absl::Status status = CheckBytes(store_, file.name, file.bytes);
      if (absl::IsDataLoss(status)) return LostSlab(rank, std::string(status.message()));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AddEntries(const layout::SlotManifest& manifest, const WeightPlan& plan) {
    // Also those that others have captured, so that a tensor of which nobody has is missed.
    std::vector<DcpEntry*> of_tensor(manifest.tensors.size(), nullptr);
    for (size_t i = 0; i < manifest.tensors.size(); ++i) {
      const TensorSpec logical = layout::ToLogical(manifest.tensors[i]).spec;
      const std::optional<std::string> key = names_.KeyOf(logical.name);
      if (!key) {
        left_out_.insert(logical.name);
        continue;
      }
      const auto entry = table_.EntryOf(logical, {*key, {*key}}, manifest.rank);
      if (!entry.ok()) return entry.status();
      of_tensor[i] = *entry;
    }
    for (const WeightFile& file : plan.files) {
      uint64_t at = file.header.size();
      for (const WeightEntry& entry : file.entries) {
        of_tensor[entry.from.tensor]->chunks.push_back(
            {entry.box.offset, entry.box.extent, file.name, at, entry.from.bytes});
        at += entry.from.bytes;
      }
    }
    return absl::OkStatus();
  }

  ColdStore& store_;
  const CopyOrder& order_;
  const WeightNames& names_;
  EntryTable table_;
  uint64_t bytes_ = 0;
  absl::flat_hash_set<std::string> left_out_;  // logical names
};

// None where a tensor lies in pieces, whose places an index cannot name.
std::optional<std::string> IndexOf(const std::vector<DcpEntry>& entries) {
  std::map<std::string, std::string> files;
  uint64_t bytes = 0;
  for (const DcpEntry& entry : entries) {
    if (entry.chunks.size() != 1) return std::nullopt;
    files[entry.key] = entry.chunks.front().file;
    bytes += entry.chunks.front().bytes;
  }
  return SafetensorsIndex(files, bytes);
}

absl::Status RemoveIfThere(ColdStore& store, const char* file) {
  const absl::Status status = store.Remove(file);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace

absl::StatusOr<FinishedCopy> FinishWeights(ColdStore& store, const CopyOrder& order,
                                           const WeightNames& names) {
  CopyRecord record;
  *record.mutable_order() = order;
  WeightsOfAll all(store, order, names);
  for (uint64_t number = 0; number < order.world(); ++number) {
    const Rank rank{number};
    const absl::StatusOr<CopySlab> slab = TakeSlab(store, rank, record);
    if (!slab.ok()) return slab.status();
    if (absl::Status status = all.Add(*slab, rank); !status.ok()) return status;
  }
  FinishedCopy finished;
  finished.bytes = all.bytes();
  finished.tensors_left_out = all.left_out();
  const absl::StatusOr<std::vector<DcpEntry>> entries = std::move(all).Whole();
  if (!entries.ok()) return entries.status();
  finished.tensors = entries->size();
  const std::optional<std::string> index = IndexOf(*entries);
  finished.has_index = index.has_value();
  if (absl::Status status = store.Put(kRecordFile, EncodeRecord(record)); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckStands(store, order); !status.ok()) return status;
  if (index) {
    if (absl::Status status = store.Put(kIndexFile, *index); !status.ok()) return status;
  }
  if (absl::Status status = RemoveIfThere(store, kIncompleteFile); !status.ok()) return status;
  // Of this and of who removes the copy, the later one sees what the other has done.
  if (absl::Status status = CheckStands(store, order); !status.ok()) {
    (void)store.Put(kIncompleteFile, "");
    if (index) (void)store.Remove(kIndexFile);
    return status;
  }
  return finished;
}

}  // namespace unreft::durable
