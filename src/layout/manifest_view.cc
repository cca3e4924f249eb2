#include "layout/manifest_view.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/bounds.h"
#include "layout/field_reader.h"
#include "layout/tensor_table.h"

namespace unreft::layout {
namespace {

constexpr size_t kShardsCompared = 16;  // of a tensor, each with each

// Names beyond ASCII are for others to judge.
bool IsPlainText(std::string_view text) {
  uint64_t all = 0;
  size_t at = 0;
  for (; at + sizeof(all) <= text.size(); at += sizeof(all)) {
    uint64_t eight = 0;
    std::memcpy(&eight, text.data() + at, sizeof(eight));
    all |= eight;
  }
  for (; at < text.size(); ++at) all |= static_cast<uint8_t>(text[at]);
  return (all & 0x8080'8080'8080'8080U) == 0;
}

bool Overlap(const TensorView& a, const TensorView& b) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

// As CheckTensorSpec, of a name that is plain text.
bool IsGood(const TensorView& tensor) {
  const size_t dimensions = tensor.global_shape.size();
  if (tensor.name.empty() || tensor.name.size() > kNameBytesMax) return false;
  if (DtypeBytes(tensor.dtype) == 0 || dimensions > kDimensionsMax) return false;
  if (tensor.offset.size() != dimensions || tensor.extent.size() != dimensions) return false;
  uint64_t bytes = DtypeBytes(tensor.dtype);
  for (size_t d = 0; d < dimensions; ++d) {
    const uint64_t length = tensor.global_shape[d];
    const uint64_t extent = tensor.extent[d];
    if (extent == 0 || extent > length || tensor.offset[d] > length - extent) return false;
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes >= kShardBytesLimit) return false;
  }
  return tensor.replica_index < tensor.replica_count;
}

uint64_t BytesOf(const TensorView& tensor) {
  uint64_t bytes = DtypeBytes(tensor.dtype);
  for (const uint64_t extent : tensor.extent) bytes *= extent;
  return bytes;
}

}  // namespace

absl::Status ManifestView::Read(std::string_view bytes) {
  decoded_.reset();
  head_ = {.format = 0, .min_reader = 0};
  tensors_.clear();
  parts_.clear();
  numbers_.clear();
  numbers_.reserve(bytes.size());  // they stay in place: none is of less than a byte
  if (ReadPlain(bytes)) return absl::OkStatus();
  tensors_.clear();
  absl::StatusOr<SlotManifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return manifest.status();
  decoded_ = *std::move(manifest);
  for (const TensorSpec& spec : decoded_->tensors) tensors_.push_back(ViewOf(spec));
  parts_ = decoded_->parts;
  head_ = *decoded_;
  head_.tensors.clear();
  head_.parts.clear();
  return absl::OkStatus();
}

bool ManifestView::ReadPlain(std::string_view bytes) {
  if (bytes.size() > std::numeric_limits<int>::max()) return false;
  FieldReader in(bytes);
  std::string_view job;
  uint32_t mode = 0;
  const bool is_read =
      in.Number(1, head_.format) && in.Number(2, head_.min_reader) && in.Bytes(3, job) &&
      in.Number(4, head_.version.timeline.value) && in.Number(5, head_.version.step.value) &&
      in.Number(6, head_.parent.timeline.value) && in.Number(7, head_.parent.step.value) &&
      in.Number(8, head_.rank.value) && in.Number(9, head_.world) &&
      in.Number(10, head_.attempt.value) && in.Number(11, head_.layout_digest) &&
      in.Number(12, mode) && in.Number(13, head_.block_bytes) && in.Number(14, head_.data_bytes) &&
      in.Number(15, head_.extras_bytes);
  if (!is_read || mode > 2 || !IsPlainText(job)) return false;
  head_.job = job;
  head_.capture_mode = static_cast<CaptureMode>(mode);
  std::string_view field;
  while (in.HasBytes(16)) {
    if (!in.Bytes(16, field) || !ReadTensor(field)) return false;
  }
  while (in.HasBytes(17)) {
    if (!in.Bytes(17, field) || !ReadPart(field)) return false;
  }
  std::string_view digests;
  if (!in.Bytes(18, digests) || !in.at_end()) return false;
  if (digests.size() % sizeof(uint32_t) != 0) return false;
  head_.replica_digests.resize(digests.size() / sizeof(uint32_t));
  if (!digests.empty()) std::memcpy(head_.replica_digests.data(), digests.data(), digests.size());
  return CheckHead() && CheckTensors() && CheckParts();
}

bool ManifestView::ReadTensor(std::string_view bytes) {
  TensorView tensor{.replica_count = 0};
  FieldReader in(bytes);
  uint32_t dtype = 0;
  uint32_t is_volatile = 0;
  const auto numbers = [&](uint32_t field, std::span<const uint64_t>& span) {
    const size_t begin = numbers_.size();
    if (!in.Numbers(field, numbers_)) return false;
    span = std::span(numbers_).subspan(begin);
    return true;
  };
  const bool is_read = in.Bytes(1, tensor.name) && in.Number(2, dtype) &&
                       numbers(3, tensor.global_shape) && numbers(4, tensor.offset) &&
                       numbers(5, tensor.extent) && in.Number(6, tensor.replica_index) &&
                       in.Number(7, tensor.replica_count) && in.Number(8, is_volatile);
  if (!is_read || !in.at_end() || is_volatile > 1) return false;
  if (dtype > std::numeric_limits<uint8_t>::max()) return false;
  tensor.dtype = static_cast<Dtype>(dtype);
  tensor.is_volatile = is_volatile == 1;
  tensors_.push_back(tensor);
  return true;
}

bool ManifestView::ReadPart(std::string_view bytes) {
  CapturedPart& part = parts_.emplace_back();
  FieldReader in(bytes);
  return in.Number(1, part.tensor) && in.Number(2, part.shard_begin) && in.Number(3, part.bytes) &&
         in.Number(4, part.slab_offset) && in.at_end();
}

bool ManifestView::CheckHead() const {
  const auto replicated = std::ranges::count_if(
      tensors_, [](const TensorView& tensor) { return tensor.replica_count > 1; });
  const size_t digests = head_.replica_digests.size();
  return head_.format != 0 && head_.min_reader != 0 && head_.min_reader <= head_.format &&
         head_.min_reader <= kManifestFormat && head_.rank.value < head_.world &&
         head_.world <= kRanksMax &&
         std::max(head_.version.step.value, head_.parent.step.value) <= kStepMax &&
         std::max(head_.version.timeline.value, head_.parent.timeline.value) <= kTimelineMax &&
         std::has_single_bit(head_.block_bytes) && head_.data_bytes < kShardBytesLimit &&
         (head_.capture_mode == CaptureMode::kSharded ||
          head_.capture_mode == CaptureMode::kFull) &&
         (digests == 0 || digests == static_cast<size_t>(replicated));
}

// As TensorTable::Create.
bool ManifestView::CheckTensors() {
  if (tensors_.size() > kShardsMax) return false;
  uint64_t room = kShardBytesLimit - 1;
  size_t known = 0;  // of the tensors before, how many are those of the manifest before
  size_t names = 0;
  for (size_t first = 0, end = 0; first < tensors_.size(); first = end, ++names) {
    const std::string_view name = tensors_[first].name;
    if (known == names && names < names_.size() && name == names_[names]) ++known;
    if (known <= names && !IsPlainText(name)) return false;
    for (; end < tensors_.size() && tensors_[end].name == name; ++end) {
      if (!IsGood(tensors_[end])) return false;
      const uint64_t bytes = BytesOf(tensors_[end]) + kPartAlignment;
      if (bytes > room) return false;
      room -= bytes;
    }
    if (!CheckAlike(first, end)) return false;
  }
  return known == names || TakeNames();
}

// Shards of one tensor that follow each other.
bool ManifestView::CheckAlike(size_t first, size_t end) const {
  if (end - first > kShardsCompared) return false;
  const TensorView& like = tensors_[first];
  for (size_t i = first + 1; i < end; ++i) {
    const TensorView& tensor = tensors_[i];
    if (tensor.dtype != like.dtype || tensor.replica_count != like.replica_count ||
        !std::ranges::equal(tensor.global_shape, like.global_shape)) {
      return false;
    }
    for (size_t j = first; j < i; ++j) {
      if (Overlap(tensors_[j], tensor)) return false;
    }
  }
  return true;
}

// False when a tensor has shards apart from each other: they would have to be compared.
bool ManifestView::TakeNames() {
  names_.clear();
  absl::flat_hash_set<std::string_view> seen;
  for (const TensorView& tensor : tensors_) {
    if (!names_.empty() && names_.back() == tensor.name) continue;
    if (!seen.insert(tensor.name).second) {
      names_.clear();
      return false;
    }
    names_.emplace_back(tensor.name);
  }
  return true;
}

// As DecodeManifest, of good tensors.
bool ManifestView::CheckParts() const {
  uint64_t slab_begin = 0;
  for (const CapturedPart& part : parts_) {
    if (part.tensor >= tensors_.size()) return false;
    const TensorView& tensor = tensors_[part.tensor];
    const uint64_t shard = BytesOf(tensor);
    const uint32_t element = DtypeBytes(tensor.dtype);
    if (part.bytes == 0 || part.shard_begin % element != 0 || part.bytes % element != 0 ||
        part.shard_begin > shard || part.bytes > shard - part.shard_begin ||
        part.slab_offset % kPartAlignment != 0 || part.slab_offset < slab_begin ||
        part.slab_offset > head_.data_bytes || part.bytes > head_.data_bytes - part.slab_offset) {
      return false;
    }
    slab_begin = part.slab_offset + part.bytes;
  }
  return true;
}

}  // namespace unreft::layout
