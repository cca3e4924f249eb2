#include "layout/tensor_table.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "base/text.h"
#include "base/wire.h"
#include "layout/box.h"
#include "layout/digest.h"

namespace unreft::layout {
namespace {

template <typename... Args>
absl::Status Refuse(const TensorSpec& spec, fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format("tensor '{}': {}", CleanText(spec.name, 256),
                                                fmt::format(format, std::forward<Args>(args)...)));
}

// Names go into protobuf strings and JSON, which hold nothing else.
absl::Status CheckName(const std::string& name) {
  if (name.empty() || name.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}': its name needs 1 to {} bytes, found {}", CleanText(name, 64),
                    kNameBytesMax, name.size()));
  }
  for (size_t at = 0; at < name.size();) {
    const size_t bytes = Utf8SequenceBytes(std::string_view(name).substr(at));
    if (bytes == 0) {
      return absl::InvalidArgumentError(
          fmt::format("tensor '{}...': its name needs UTF-8, found byte {:#04x} at {}",
                      CleanText(name.substr(0, at), 64), static_cast<uint8_t>(name[at]), at));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckBox(const TensorSpec& spec) {
  const size_t dims = spec.global_shape.size();
  if (spec.offset.size() != dims || spec.extent.size() != dims) {
    return Refuse(spec, "global shape, offset and extent need as many dimensions, found {}, {}, {}",
                  dims, spec.offset.size(), spec.extent.size());
  }
  if (dims > kDimensionsMax) {
    return Refuse(spec, "needs at most {} dimensions, found {}", kDimensionsMax, dims);
  }
  for (size_t d = 0; d < dims; ++d) {
    if (spec.extent[d] == 0) return Refuse(spec, "needs extent >= 1 in dimension {}, found 0", d);
    if (spec.extent[d] > spec.global_shape[d] ||
        spec.offset[d] > spec.global_shape[d] - spec.extent[d]) {
      return Refuse(spec, "offset {} and extent {} in dimension {} lie outside the global shape {}",
                    spec.offset[d], spec.extent[d], d, spec.global_shape[d]);
    }
  }
  return absl::OkStatus();
}

// Without overflow, whatever the extents are.
bool ShardFits(const TensorSpec& spec) {
  uint64_t room = (kShardBytesLimit - 1) / DtypeBytes(spec.dtype);  // in elements
  for (const uint64_t extent : spec.extent) room /= extent;
  return room > 0;
}

// What must be equal for specs of one name, in one table.
absl::Status CheckAlike(const TensorSpec& first, const TensorSpec& spec) {
  if (first.dtype != spec.dtype) {
    return Refuse(spec, "two shards of different dtype, {} and {}", DtypeName(first.dtype),
                  DtypeName(spec.dtype));
  }
  if (first.global_shape != spec.global_shape) {
    return Refuse(spec, "two shards of different global shape, [{}] and [{}]",
                  fmt::join(first.global_shape, ", "), fmt::join(spec.global_shape, ", "));
  }
  if (first.replica_count != spec.replica_count) {
    return Refuse(spec, "two shards of different replica count, {} and {}", first.replica_count,
                  spec.replica_count);
  }
  return absl::OkStatus();
}

absl::Status CheckDisjoint(std::span<const TensorSpec* const> specs_of_a_name) {
  std::vector<Box> boxes;
  for (const TensorSpec* spec : specs_of_a_name) boxes.push_back(BoxOf(*spec));
  const auto overlap = FindOverlap(boxes);
  if (!overlap.ok()) {
    return absl::Status(overlap.status().code(),
                        fmt::format("tensor '{}': {}", specs_of_a_name[0]->name,
                                    std::string(overlap.status().message())));
  }
  if (!*overlap) return absl::OkStatus();
  const auto [first, second] = **overlap;
  return Refuse(*specs_of_a_name[0], "two shards of it overlap, {} and {}", BoxText(boxes[first]),
                BoxText(boxes[second]));
}

absl::Status CheckTogether(std::span<const TensorSpec> specs) {
  absl::flat_hash_map<std::string_view, std::vector<const TensorSpec*>> by_name;
  for (const TensorSpec& spec : specs) {
    auto& alike = by_name[spec.name];
    if (!alike.empty()) {
      if (absl::Status status = CheckAlike(*alike[0], spec); !status.ok()) return status;
    }
    alike.push_back(&spec);
  }
  for (const TensorSpec& spec : specs) {  // not over the map: the order is that of the specs
    const auto& alike = by_name[spec.name];
    if (alike.size() == 1 || alike[0] != &spec) continue;
    if (absl::Status status = CheckDisjoint(alike); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckTotal(std::span<const TensorSpec> specs) {
  uint64_t room = kShardBytesLimit - 1;
  for (const TensorSpec& spec : specs) {
    const uint64_t bytes = ShardBytes(spec) + 64;  // what aligning its part may take
    if (bytes > room) {
      return Refuse(spec, "all shards together need less than {} bytes, found {} with this one",
                    kShardBytesLimit, kShardBytesLimit - 1 - room + bytes);
    }
    room -= bytes;
  }
  return absl::OkStatus();
}

// What a digest is of: TensorSpec without when it is copied.
struct DigestedTensor {
  TensorSpec spec;
  void Fields(auto& wire) {
    wire(spec.name, spec.dtype, spec.global_shape, spec.offset, spec.extent, spec.replica_index,
         spec.replica_count);
  }
};

struct DigestedTable {
  std::vector<DigestedTensor> tensors;
  void Fields(auto& wire) { wire(tensors); }
};

}  // namespace

absl::Status CheckTensorSpec(const TensorSpec& spec) {
  if (absl::Status status = CheckName(spec.name); !status.ok()) return status;
  if (DtypeBytes(spec.dtype) == 0) return Refuse(spec, "unknown {}", DtypeName(spec.dtype));
  if (absl::Status status = CheckBox(spec); !status.ok()) return status;
  if (!ShardFits(spec)) {
    return Refuse(spec, "a shard of [{}] elements of {} bytes; it needs less than {} bytes",
                  fmt::join(spec.extent, ", "), DtypeBytes(spec.dtype), kShardBytesLimit);
  }
  if (spec.replica_index >= spec.replica_count) {
    return Refuse(spec, "replica index {} needs a replica count above it, found {}",
                  spec.replica_index, spec.replica_count);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorTable> TensorTable::Create(std::vector<TensorSpec> specs) {
  if (specs.size() > kShardsMax) {
    return absl::ResourceExhaustedError(fmt::format(
        "a rank registers {} shards, at most {} are possible", specs.size(), kShardsMax));
  }
  for (const TensorSpec& spec : specs) {
    if (absl::Status status = CheckTensorSpec(spec); !status.ok()) return status;
  }
  if (absl::Status status = CheckTogether(specs); !status.ok()) return status;
  if (absl::Status status = CheckTotal(specs); !status.ok()) return status;
  DigestedTable digested;
  for (const TensorSpec& spec : specs) digested.tensors.push_back({spec});
  TensorTable table;
  table.specs_ = std::move(specs);
  table.digest_ = Digest64(EncodeWire(std::move(digested)));
  return table;
}

}  // namespace unreft::layout
