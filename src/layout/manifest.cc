#include "layout/manifest.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>
#include <unreft/manifest.pb.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/bounds.h"
#include "layout/tensor_table.h"

namespace unreft::layout {
namespace {

void ToProto(const TensorSpec& spec, Tensor& out) {
  out.set_name(spec.name);
  out.set_dtype(static_cast<uint32_t>(spec.dtype));
  out.mutable_global_shape()->Assign(spec.global_shape.begin(), spec.global_shape.end());
  out.mutable_offset()->Assign(spec.offset.begin(), spec.offset.end());
  out.mutable_extent()->Assign(spec.extent.begin(), spec.extent.end());
  out.set_replica_index(spec.replica_index);
  out.set_replica_count(spec.replica_count);
  out.set_is_volatile(spec.is_volatile);
}

void ToProto(const CapturedPart& part, Part& out) {
  out.set_tensor(part.tensor);
  out.set_shard_begin(part.shard_begin);
  out.set_bytes(part.bytes);
  out.set_slab_offset(part.slab_offset);
}

Manifest ToProto(const SlotManifest& manifest) {
  Manifest out;
  out.set_format(manifest.format);
  out.set_min_reader(manifest.min_reader);
  out.set_job(manifest.job);
  out.set_timeline(manifest.version.timeline.value);
  out.set_step(manifest.version.step.value);
  out.set_parent_timeline(manifest.parent.timeline.value);
  out.set_parent_step(manifest.parent.step.value);
  out.set_rank(manifest.rank.value);
  out.set_world(manifest.world);
  out.set_attempt(manifest.attempt.value);
  out.set_layout_digest(manifest.layout_digest);
  out.set_capture_mode(static_cast<uint32_t>(manifest.capture_mode));
  out.set_block_bytes(manifest.block_bytes);
  out.set_data_bytes(manifest.data_bytes);
  out.set_extras_bytes(manifest.extras_bytes);
  for (const TensorSpec& spec : manifest.tensors) ToProto(spec, *out.add_tensors());
  for (const CapturedPart& part : manifest.parts) ToProto(part, *out.add_parts());
  for (uint32_t digest : manifest.replica_digests) out.add_replica_digests(digest);
  return out;
}

TensorSpec FromProto(const Tensor& in) {
  // A number that does not fit is no dtype, and must not become one by losing its upper bits.
  const uint32_t dtype = in.dtype() <= std::numeric_limits<uint8_t>::max() ? in.dtype() : 0;
  return {.name = in.name(),
          .dtype = static_cast<Dtype>(dtype),
          .global_shape = {in.global_shape().begin(), in.global_shape().end()},
          .offset = {in.offset().begin(), in.offset().end()},
          .extent = {in.extent().begin(), in.extent().end()},
          .replica_index = in.replica_index(),
          .replica_count = in.replica_count(),
          .is_volatile = in.is_volatile()};
}

SlotManifest FromProto(const Manifest& in) {
  SlotManifest manifest{
      .format = in.format(),
      .min_reader = in.min_reader(),
      .job = in.job(),
      .version = {Timeline{in.timeline()}, Step{in.step()}},
      .parent = {Timeline{in.parent_timeline()}, Step{in.parent_step()}},
      .rank = Rank{in.rank()},
      .world = in.world(),
      .attempt = Attempt{in.attempt()},
      .layout_digest = in.layout_digest(),
      .capture_mode = static_cast<CaptureMode>(in.capture_mode()),  // checked before
      .block_bytes = in.block_bytes(),
      .data_bytes = in.data_bytes(),
      .extras_bytes = in.extras_bytes(),
  };
  for (const Tensor& tensor : in.tensors()) manifest.tensors.push_back(FromProto(tensor));
  for (const Part& part : in.parts()) {
    manifest.parts.push_back({part.tensor(), part.shard_begin(), part.bytes(), part.slab_offset()});
  }
  manifest.replica_digests = {in.replica_digests().begin(), in.replica_digests().end()};
  return manifest;
}

std::string Subject(const Manifest& in) {
  return fmt::format("manifest of rank {}, version {}:{}", in.rank(), Timeline{in.timeline()},
                     in.step());
}

template <typename... Args>
absl::Status Bad(const Manifest& in, fmt::format_string<Args...> format, Args&&... args) {
  return absl::DataLossError(
      fmt::format("{}: {}", Subject(in), fmt::format(format, std::forward<Args>(args)...)));
}

absl::Status CheckFormat(const Manifest& in) {
  if (in.format() == 0 || in.min_reader() == 0 || in.min_reader() > in.format()) {
    return Bad(in, "needs a format and a minimum reader up to it, found {} and {}", in.format(),
               in.min_reader());
  }
  if (in.min_reader() > kManifestFormat) {
    return absl::FailedPreconditionError(
        fmt::format("{}: written in format {} for readers of {} and up, this reader knows {}",
                    Subject(in), in.format(), in.min_reader(), kManifestFormat));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const Manifest& in) {
  if (in.rank() >= in.world()) return Bad(in, "needs a world above it, found {}", in.world());
  if (in.world() > kRanksMax) {
    return Bad(in, "needs a world of at most {} ranks, found {}", kRanksMax, in.world());
  }
  if (std::max(in.step(), in.parent_step()) > kStepMax ||
      std::max(in.timeline(), in.parent_timeline()) > kTimelineMax) {
    return Bad(in, "needs steps up to {} and timelines up to {}, found {}:{} on parent {}:{}",
               kStepMax, kTimelineMax, in.timeline(), in.step(), in.parent_timeline(),
               in.parent_step());
  }
  if (!std::has_single_bit(in.block_bytes())) {
    return Bad(in, "needs a block size that is a power of two, found {}", in.block_bytes());
  }
  if (in.data_bytes() >= kShardBytesLimit) {
    return Bad(in, "needs less than {} bytes of data, found {}", kShardBytesLimit, in.data_bytes());
  }
  const uint32_t mode = in.capture_mode();
  if (mode != static_cast<uint32_t>(CaptureMode::kSharded) &&
      mode != static_cast<uint32_t>(CaptureMode::kFull)) {
    return Bad(in, "needs capture mode 1 or 2, found {}", mode);
  }
  int replicated = 0;
  for (const Tensor& tensor : in.tensors()) {
    replicated += tensor.replica_count() > 1;
    if (tensor.dtype() > std::numeric_limits<uint8_t>::max()) {
      return Bad(in, "tensor '{}': unknown dtype {}", tensor.name(), tensor.dtype());
    }
  }
  if (in.replica_digests_size() != 0 && in.replica_digests_size() != replicated) {
    return Bad(in, "needs a digest of each of {} tensors with replicas or none, found {}",
               replicated, in.replica_digests_size());
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const Manifest& in, const TensorSpec& spec, const Part& part,
                       uint64_t slab_begin) {
  const uint64_t shard = ShardBytes(spec);
  const uint32_t element = DtypeBytes(spec.dtype);
  if (part.bytes() == 0 || part.shard_begin() % element != 0 || part.bytes() % element != 0) {
    return Bad(in,
               "tensor '{}' of {} bytes per element: {} bytes from byte {} are no whole elements",
               spec.name, element, part.bytes(), part.shard_begin());
  }
  if (part.shard_begin() > shard || part.bytes() > shard - part.shard_begin()) {
    return Bad(in, "tensor '{}': its shard has {} bytes, found {} from byte {}", spec.name, shard,
               part.bytes(), part.shard_begin());
  }
  if (part.slab_offset() % kPartAlignment != 0 || part.slab_offset() < slab_begin) {
    return Bad(in, "tensor '{}': needs a slab offset of at least {}, a multiple of {}, found {}",
               spec.name, slab_begin, kPartAlignment, part.slab_offset());
  }
  if (part.slab_offset() > in.data_bytes() || part.bytes() > in.data_bytes() - part.slab_offset()) {
    return Bad(in, "tensor '{}': the slab has {} bytes, found {} at {}", spec.name, in.data_bytes(),
               part.bytes(), part.slab_offset());
  }
  return absl::OkStatus();
}

absl::Status CheckParts(const Manifest& in, std::span<const TensorSpec> specs) {
  uint64_t slab_begin = 0;  // of what the parts so far left
  for (const Part& part : in.parts()) {
    if (part.tensor() >= specs.size()) {
      return Bad(in, "a part of tensor {}, found {} tensors", part.tensor(), specs.size());
    }
    absl::Status status = CheckPart(in, specs[part.tensor()], part, slab_begin);
    if (!status.ok()) return status;
    slab_begin = part.slab_offset() + part.bytes();
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeManifest(const SlotManifest& manifest) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    ToProto(manifest).SerializeToCodedStream(&coded);
  }
  return bytes;
}

uint64_t ManifestBytesMax(SlotManifest manifest) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  manifest.version = {Timeline{kMost}, Step{kMost}};
  manifest.parent = manifest.version;
  manifest.attempt = Attempt{kMost};
  manifest.layout_digest = kMost;
  manifest.extras_bytes = kMost;
  manifest.replica_digests.assign(manifest.tensors.size(), 0);
  return EncodeManifest(manifest).size();
}

absl::StatusOr<SlotManifest> DecodeManifest(std::string_view bytes) {
  // A library does not print: protobuf would, of a string that is not UTF-8.
  const google::protobuf::LogSilencer silencer;
  Manifest in;
  if (bytes.size() > std::numeric_limits<int>::max() ||
      !in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(fmt::format(
        "manifest: needed a message unreft.Manifest, found {} other bytes", bytes.size()));
  }
  if (absl::Status status = CheckFormat(in); !status.ok()) return status;
  if (absl::Status status = CheckNumbers(in); !status.ok()) return status;
  SlotManifest manifest = FromProto(in);
  auto table = TensorTable::Create(manifest.tensors);
  if (!table.ok()) return Bad(in, "{}", std::string(table.status().message()));
  if (absl::Status status = CheckParts(in, table->specs()); !status.ok()) return status;
  return manifest;
}

}  // namespace unreft::layout
