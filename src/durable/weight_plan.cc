#include "durable/weight_plan.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "durable/copy_record.h"
#include "durable/row_major.h"
#include "durable/safetensors.h"
#include "layout/memory_order.h"

namespace unreft::durable {
namespace {

absl::Status CheckOrderOf(const layout::SlotManifest& manifest, const CopiedBox& from) {
  const TensorSpec& stored = manifest.tensors[from.tensor];
  const layout::LogicalTensor logical = layout::ToLogical(stored);
  const uint64_t bytes = AtOnceBytes({from.box.extent, logical.order, DtypeBytes(stored.dtype)});
  if (bytes <= kAtOnceBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "tensor '{}': it does not lie in row-major order, and {} bytes of it have to be in memory at "
      "once to write it so, at most {}: `--format dcp` writes it as it lies",
      CleanText(logical.spec.name, kTextBytesMax), bytes, kAtOnceBytesMax));
}

absl::Status Complete(const layout::SlotManifest& manifest, WeightFile& file) {
  const auto element = [&](const WeightEntry& entry) {
    return DtypeBytes(manifest.tensors[entry.from.tensor].dtype);
  };
  std::stable_sort(
      file.entries.begin(), file.entries.end(),
      [&](const WeightEntry& a, const WeightEntry& b) { return element(a) > element(b); });
  std::vector<SafetensorsEntry> entries;
  entries.reserve(file.entries.size());
  for (const WeightEntry& entry : file.entries) {
    entries.push_back(
        {entry.key, manifest.tensors[entry.from.tensor].dtype, entry.box.offset, entry.box.extent});
    file.bytes += entry.from.bytes;
  }
  absl::StatusOr<std::string> header = SafetensorsHeader(entries);
  if (!header.ok()) return header.status();
  file.header = *std::move(header);
  file.bytes += file.header.size();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightPlan> PlanWeights(const layout::SlotManifest& manifest,
                                       const WeightNames& names) {
  absl::StatusOr<std::vector<CopiedBox>> boxes = CopiedBoxes(manifest, UINT64_MAX);
  if (!boxes.ok()) return boxes.status();
  WeightPlan plan;
  absl::flat_hash_map<std::string, size_t> boxes_of;  // by key: so many are planned
  for (CopiedBox& box : *boxes) {
    const TensorSpec& stored = manifest.tensors[box.tensor];
    std::optional<std::string> key = names.KeyOf(layout::ToLogical(stored).spec.name);
    if (!key) continue;
    if (absl::Status status = CheckOrderOf(manifest, box); !status.ok()) return status;
    const size_t number = boxes_of[*key]++;
    if (number == plan.files.size()) {
      plan.files.emplace_back().name = WeightFileName(manifest.rank, manifest.world, number + 1);
    }
    layout::Box logical = LogicalBoxOf(stored, box.box);
    plan.files[number].entries.push_back({*std::move(key), std::move(box), std::move(logical)});
  }
  for (WeightFile& file : plan.files) {
    if (absl::Status status = Complete(manifest, file); !status.ok()) return status;
    plan.bytes += file.bytes;
  }
  return plan;
}

}  // namespace unreft::durable
