#include "durable/copy_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "layout/box_range.h"
#include "layout/memory_order.h"
#include "layout/tensor_table.h"

namespace unreft::durable {
namespace {

// The logical tensor whose shard is that box.
layout::LogicalTensor LogicalOf(const TensorSpec& stored, const layout::Box& box) {
  TensorSpec spec = stored;
  spec.offset = box.offset;
  spec.extent = box.extent;
  return layout::ToLogical(std::move(spec));
}

// The most elements that an item has: whole indices of the outermost dimension, if one fits, so
// that few items are divided into many boxes.
uint64_t ItemElements(const TensorSpec& spec, uint64_t item_bytes_max) {
  const uint64_t most = item_bytes_max / DtypeBytes(spec.dtype);
  if (spec.extent.empty()) return most;
  const uint64_t row = ShardElements(spec) / spec.extent.front();
  return row <= most ? most - most % row : most;
}

// That the part is whole elements of one of the manifest's tensors.
absl::Status CheckPart(const layout::SlotManifest& manifest, const layout::CapturedPart& part) {
  if (part.tensor >= manifest.tensors.size()) {
    return absl::DataLossError(fmt::format("the manifest of rank {}: a part of tensor {}, found {}",
                                           manifest.rank, part.tensor, manifest.tensors.size()));
  }
  const TensorSpec& spec = manifest.tensors[part.tensor];
  if (absl::Status status = layout::CheckTensorSpec(spec); !status.ok()) {
    return absl::DataLossError(
        fmt::format("the manifest of rank {}: {}", manifest.rank, status.message()));
  }
  const uint64_t shard = ShardBytes(spec);
  const uint64_t element = DtypeBytes(spec.dtype);
  if (part.bytes != 0 && part.bytes <= shard && part.shard_begin <= shard - part.bytes &&
      part.bytes % element == 0 && part.shard_begin % element == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(fmt::format(
      "the manifest of rank {}: tensor '{}': needed whole elements of {} bytes of its {} bytes, "
      "found {} bytes from byte {}",
      manifest.rank, CleanText(spec.name, 256), element, shard, part.bytes, part.shard_begin));
}

}  // namespace

bool IsCopied(const layout::SlotManifest& manifest, const TensorSpec& spec) {
  return manifest.capture_mode != layout::CaptureMode::kFull || spec.replica_index == 0;
}

absl::StatusOr<std::vector<CopiedBox>> CopiedBoxes(const layout::SlotManifest& manifest,
                                                   uint64_t bytes_max) {
  std::vector<CopiedBox> boxes;
  for (const layout::CapturedPart& part : manifest.parts) {
    if (absl::Status status = CheckPart(manifest, part); !status.ok()) return status;
    const TensorSpec& spec = manifest.tensors[part.tensor];
    if (!IsCopied(manifest, spec)) continue;
    const uint64_t element = DtypeBytes(spec.dtype);
    const uint64_t first = part.shard_begin / element;
    const uint64_t end = first + part.bytes / element;
    const uint64_t step = ItemElements(spec, bytes_max);
    for (uint64_t begin = first; begin < end;) {
      // To the next whole multiple of `step`.
      const uint64_t until = std::min(end, (begin / step + 1) * step);
      const auto divided = layout::DivideRange(spec, begin, until);
      if (!divided.ok()) {
        return absl::DataLossError(
            fmt::format("the manifest of rank {}: {}", manifest.rank, divided.status().message()));
      }
      for (const layout::RangePart& range : *divided) {
        boxes.push_back({part.tensor, range.box,
                         part.slab_offset + (begin - first + range.begin) * element,
                         range.box.elements() * element});
      }
      begin = until;
    }
  }
  return boxes;
}

absl::StatusOr<CopyPlan> PlanCopy(const layout::SlotManifest& manifest, uint64_t item_bytes_max) {
  absl::StatusOr<std::vector<CopiedBox>> boxes = CopiedBoxes(manifest, item_bytes_max);
  if (!boxes.ok()) return boxes.status();
  CopyPlan plan;
  for (CopiedBox& box : *boxes) {
    CopyItem item{std::move(box)};
    item.at = plan.file_bytes;
    item.archive_bytes = ArchiveBytes(ArchiveOf(manifest.tensors[item.tensor], item.box));
    plan.file_bytes += item.archive_bytes;
    plan.items.push_back(std::move(item));
  }
  return plan;
}

ArchiveTensor ArchiveOf(const TensorSpec& stored, const layout::Box& box) {
  const layout::LogicalTensor logical = LogicalOf(stored, box);
  const std::vector<uint64_t> in_memory = layout::Strides(box.extent);
  ArchiveTensor tensor{stored.dtype, logical.spec.extent, in_memory};
  for (size_t i = 0; i < logical.order.size(); ++i) tensor.strides[logical.order[i]] = in_memory[i];
  return tensor;
}

layout::Box LogicalBoxOf(const TensorSpec& stored, const layout::Box& box) {
  return layout::BoxOf(LogicalOf(stored, box).spec);
}

}  // namespace unreft::durable
