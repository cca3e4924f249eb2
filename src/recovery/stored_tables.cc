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

void StoredTensor::AddHolder(const layout::TensorView& shard, uint32_t slab, uint32_t number) {
  if (std::pair(slab, number) >= first_) return;
  first_ = {slab, number};
  like_.is_volatile = shard.is_volatile;
}

void StoredTensor::Add(const layout::TensorView& shard, const ShardPart& part) {
  if (empty() && !IsLike(shard)) BeLike(shard);
  if (IsLike(shard)) return shards_.Add(shard.offset, shard.extent, part);
  others_.push_back({layout::SpecOf(shard), part.slab, part.slab_offset});
}

// Who named it first captured nothing of it.
void StoredTensor::BeLike(const layout::TensorView& shard) {
  TensorSpec like = layout::SpecOf(shard);
  like_.dtype = like.dtype;
  like_.global_shape = std::move(like.global_shape);
  like_.offset = std::move(like.offset);
  like_.extent = std::move(like.extent);
  shards_ = ShardTable(like_.global_shape.size(), expected_);
}

bool StoredTensor::IsLike(const layout::TensorView& shard) const {
  return shard.dtype == like_.dtype && std::ranges::equal(shard.global_shape, like_.global_shape);
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

void StoredTables::Add(const StoredPart& part) {
  const layout::TensorView shard = layout::ViewOf(*part.spec);
  TensorOf(shard).Add(shard, {.shard_begin = part.shard_begin,
                              .shard_end = part.shard_begin + part.bytes,
                              .slab_offset = part.slab_offset,
                              .slab = part.slab});
}

void StoredTables::AddSlab(uint32_t slab, std::span<const layout::TensorView> shards,
                           std::span<const layout::CapturedPart> parts) {
  last_.resize(shards.size(), nullptr);
  for (uint32_t i = 0; i < shards.size(); ++i) {
    if (last_[i] == nullptr || last_[i]->like().name != shards[i].name) {
      last_[i] = &TensorOf(shards[i]);
    }
    last_[i]->AddHolder(shards[i], slab, i);
  }
  for (const layout::CapturedPart& part : parts) {
    last_[part.tensor]->Add(shards[part.tensor], {.shard_begin = part.shard_begin,
                                                  .shard_end = part.shard_begin + part.bytes,
                                                  .slab_offset = part.slab_offset,
                                                  .slab = slab});
  }
}

void StoredTables::AddSlab(uint32_t slab, std::span<const TensorSpec> shards,
                           std::span<const layout::CapturedPart> parts) {
  std::vector<layout::TensorView> views;
  for (const TensorSpec& shard : shards) views.push_back(layout::ViewOf(shard));
  AddSlab(slab, views, parts);
}

const StoredTensor* StoredTables::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() || found->second->empty() ? nullptr : found->second;
}

std::vector<const StoredTensor*> StoredTables::InOrder() const {
  std::vector<const StoredTensor*> tensors;
  for (const StoredTensor& tensor : tensors_) tensors.push_back(&tensor);
  std::ranges::stable_sort(tensors, {}, &StoredTensor::first);
  return tensors;
}

StoredTensor& StoredTables::TensorOf(const layout::TensorView& shard) {
  if (const auto found = by_name_.find(shard.name); found != by_name_.end()) return *found->second;
  StoredTensor& tensor = tensors_.emplace_back(layout::SpecOf(shard), expected_);
  by_name_.emplace(tensor.like().name, &tensor);
  return tensor;
}

}  // namespace unreft::recovery
