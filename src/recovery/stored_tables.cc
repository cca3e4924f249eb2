#include "recovery/stored_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "layout/job_layout.h"

namespace unreft::recovery {
namespace {

bool IsSameKind(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.global_shape == b.global_shape;
}

}  // namespace

// --- one tensor ---

void StoredTensor::Add(const StoredPart& part) {
  if (!IsSameKind(like_, *part.spec)) {
    others_.push_back({*part.spec, part.slab, part.slab_offset});
    return;
  }
  shards_.Add(part.spec->offset, part.spec->extent,
              {.shard_begin = part.shard_begin,
               .shard_end = part.shard_begin + part.bytes,
               .slab_offset = part.slab_offset,
               .slab = part.slab});
}

absl::StatusOr<const ShardTable*> StoredTensor::Shards() const {
  std::call_once(sorted_, [this] {
    shards_.Sort();
    status_ = CheckKinds();
    if (status_.ok()) status_ = CheckApart();
  });
  if (!status_.ok()) return status_;
  return &shards_;
}

// Told of the first two in the order of their boxes.
absl::Status StoredTensor::CheckKinds() const {
  if (others_.empty()) return absl::OkStatus();
  const auto key = [](const Other& part) {
    return std::tie(part.spec.offset, part.spec.extent, part.slab, part.slab_offset);
  };
  std::vector<Other> parts = others_;
  for (uint32_t shard = 0; shard < shards_.shards(); ++shard) {
    const layout::Box box = shards_.BoxOf(shard);
    TensorSpec spec = like_;
    spec.offset = box.offset;
    spec.extent = box.extent;
    for (const ShardPart& part : shards_.PartsOf(shard)) {
      parts.push_back({spec, part.slab, part.slab_offset});
    }
  }
  std::ranges::sort(parts, {}, key);
  const TensorSpec& first = parts[0].spec;
  const auto other =
      std::ranges::find_if(parts, [&](const Other& part) { return !IsSameKind(part.spec, first); });
  return absl::FailedPreconditionError(
      fmt::format("tensor '{}': is stored as {} in one slab and as {} in slab {}", like_.name,
                  layout::KindText(first), layout::KindText(other->spec), other->slab));
}

// What was captured is checked so (layout::CheckWorld): a byte has one place in the tensor, and in
// each box that holds it the same.
absl::Status StoredTensor::CheckApart() const {
  const auto overlap = shards_.FindOverlap();
  if (!overlap.ok()) {
    return absl::Status(
        overlap.status().code(),
        fmt::format("tensor '{}': {}", like_.name, std::string(overlap.status().message())));
  }
  if (!*overlap) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "tensor '{}': is stored in boxes that overlap without being equal, {} and {}", like_.name,
      layout::BoxText((*overlap)->first), layout::BoxText((*overlap)->second)));
}

// --- all of them ---

void StoredTables::Add(const StoredPart& part) { TensorOf(*part.spec).Add(part); }

void StoredTables::AddSlab(uint32_t slab, std::span<const TensorSpec> specs,
                           std::span<const layout::CapturedPart> parts) {
  last_.resize(parts.size(), nullptr);
  for (size_t i = 0; i < parts.size(); ++i) {
    const layout::CapturedPart& part = parts[i];
    const TensorSpec& spec = specs[part.tensor];
    if (last_[i] == nullptr || last_[i]->like().name != spec.name) last_[i] = &TensorOf(spec);
    last_[i]->Add({&spec, slab, part.shard_begin, part.bytes, part.slab_offset});
  }
}

const StoredTensor* StoredTables::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

StoredTensor& StoredTables::TensorOf(const TensorSpec& spec) {
  if (const auto found = by_name_.find(spec.name); found != by_name_.end()) return *found->second;
  StoredTensor& tensor = tensors_.emplace_back(spec);
  by_name_.emplace(tensor.like().name, &tensor);
  return tensor;
}

}  // namespace unreft::recovery
