#include "recovery/stored_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/fetch_lines.h"
#include "layout/job_layout.h"

namespace unreft::recovery {
namespace {

// Tensors: as long as memory takes to answer, and twice, since where a table ends is to be read.
constexpr size_t kEndsAhead = 4;
constexpr size_t kSelfAhead = 8;

bool IsSameKind(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.global_shape == b.global_shape;
}

ShardPart PartOf(const layout::CapturedPart& part, uint32_t slab) {
  return {.shard_begin = part.shard_begin,
          .shard_end = part.shard_begin + part.bytes,
          .slab_offset = part.slab_offset,
          .slab = slab};
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
  if (!IsLike(shard)) return others_.push_back({layout::SpecOf(shard), part.slab});
  lowest_ = std::min(lowest_, part.slab);
  if (IsWanted(shard)) shards_.Add(shard.offset, shard.extent, part);
}

void StoredTensor::FetchSelf() const { FetchLines(this, sizeof(*this)); }

void StoredTensor::FetchEnds(size_t parts) const {
  FetchLines(like_.name.data(), like_.name.size());
  FetchLines(like_.global_shape.data(), like_.global_shape.size() * sizeof(uint64_t));
  if (wanted_.box) {
    FetchLines(wanted_.box->offset.data(), wanted_.box->offset.size() * sizeof(uint64_t));
    FetchLines(wanted_.box->extent.data(), wanted_.box->extent.size() * sizeof(uint64_t));
  }
  shards_.FetchEnds(parts);
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

bool StoredTensor::IsWanted(const layout::TensorView& shard) const {
  if (!wanted_.box) return wanted_.is_any;
  const auto& [offset, extent] = *wanted_.box;
  if (offset.size() != shard.offset.size()) return false;
  for (size_t d = 0; d < offset.size(); ++d) {
    if (shard.offset[d] >= offset[d] + extent[d]) return false;
    if (offset[d] >= shard.offset[d] + shard.extent[d]) return false;
  }
  return true;
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

// Told of the lowest slab and of the next one that differs from it: whichever was added first.
absl::Status StoredTensor::CheckKinds() const {
  if (others_.empty()) return absl::OkStatus();
  std::vector<Other> shards = others_;
  shards.push_back({like_, lowest_});
  std::ranges::sort(shards, {}, &Other::slab);
  const Other& first = shards[0];
  const auto other = std::ranges::find_if(
      shards, [&](const Other& shard) { return !IsSameKind(shard.spec, first.spec); });
  return absl::FailedPreconditionError(fmt::format(
      "tensor '{}': is stored as {} in slab {} and as {} in slab {}", like_.name,
      layout::KindText(first.spec), first.slab, layout::KindText(other->spec), other->slab));
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

void StoredTables::AddSlabs(std::span<const StoredSlab> slabs) {
  while (!slabs.empty()) {
    FindTensors(slabs.front().shards);
    const size_t alike = CountAlike(slabs);
    if (alike > 0) {
      AddAlike(slabs.first(alike));
    } else {
      AddApart(slabs.front());
    }
    slabs = slabs.subspan(std::max<size_t>(alike, 1));
  }
}

void StoredTables::AddSlab(uint32_t slab, std::span<const TensorSpec> shards,
                           std::span<const layout::CapturedPart> parts) {
  std::vector<layout::TensorView> views;
  for (const TensorSpec& shard : shards) views.push_back(layout::ViewOf(shard));
  const StoredSlab alone[] = {{.slab = slab, .shards = views, .parts = parts}};
  AddSlabs(alone);
}

void StoredTables::FindTensors(std::span<const layout::TensorView> shards) {
  bool is_as_before = last_.size() == shards.size();
  last_.resize(shards.size(), nullptr);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (last_[i] != nullptr && last_[i]->like().name == shards[i].name) continue;
    last_[i] = &TensorOf(shards[i]);
    is_as_before = false;
  }
  if (is_as_before) return;
  std::vector<const StoredTensor*> sorted(last_.begin(), last_.end());
  std::ranges::sort(sorted);
  is_each_once_ = std::ranges::adjacent_find(sorted) == sorted.end();
}

// How many of the first ones hold the tensors of the very first and have their parts in that order,
// none of these in several shards. What is kept of a tensor is then the same whether the tensors of
// a slab follow each other or the slabs of a tensor do.
size_t StoredTables::CountAlike(std::span<const StoredSlab> slabs) const {
  if (!is_each_once_) return 0;
  const auto& first = slabs.front();
  const auto other = std::ranges::find_if_not(slabs, [&](const StoredSlab& slab) {
    return std::ranges::is_sorted(slab.parts, {}, &layout::CapturedPart::tensor) &&
           std::ranges::equal(slab.shards, first.shards, {}, &layout::TensorView::name,
                              &layout::TensorView::name);
  });
  return static_cast<size_t>(other - slabs.begin());
}

// A table is touched again when thousands of others have been, so it is in no cache, and what comes
// next is nowhere that the processor would look for it by itself.
void StoredTables::AddAlike(std::span<const StoredSlab> slabs) {
  std::vector<size_t> next(slabs.size(), 0);  // part of each
  for (uint32_t i = 0; i < last_.size(); ++i) {
    if (i + kSelfAhead < last_.size()) last_[i + kSelfAhead]->FetchSelf();
    if (i + kEndsAhead < last_.size()) last_[i + kEndsAhead]->FetchEnds(slabs.size());
    for (size_t s = 0; s < slabs.size(); ++s) {
      const auto& [slab, shards, parts] = slabs[s];
      last_[i]->AddHolder(shards[i], slab, i);
      for (; next[s] < parts.size() && parts[next[s]].tensor == i; ++next[s]) {
        last_[i]->Add(shards[i], PartOf(parts[next[s]], slab));
      }
    }
  }
}

void StoredTables::AddApart(const StoredSlab& slab) {
  for (uint32_t i = 0; i < last_.size(); ++i) last_[i]->AddHolder(slab.shards[i], slab.slab, i);
  for (const layout::CapturedPart& part : slab.parts) {
    last_[part.tensor]->Add(slab.shards[part.tensor], PartOf(part, slab.slab));
  }
}

bool StoredTables::Cover(std::span<const TensorSpec> targets) const {
  return !wanted_ || std::ranges::all_of(targets, [&](const TensorSpec& target) {
    return Find(target.name) == nullptr || wanted_->Covers(target);
  });
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
  StoredTensor& tensor =
      tensors_.emplace_back(layout::SpecOf(shard), expected_, WantedOf(shard.name));
  by_name_.emplace(tensor.like().name, &tensor);
  return tensor;
}

StoredTensor::Wanted StoredTables::WantedOf(std::string_view name) const {
  if (!wanted_) return {};
  const std::optional<layout::Box>* const box = wanted_->Find(name);
  if (box == nullptr) return {.is_any = false};
  return {.box = *box};
}

}  // namespace unreft::recovery
