#include "tests/sim/model.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <string_view>

namespace unreft::sim {
namespace {

constexpr uint64_t kColumns = kRowBytes / sizeof(float);
constexpr uint64_t kLayers = 12;

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Seed(std::string_view name, const Author& author) {
  uint64_t seed = Mix(author.version.timeline.value);
  seed = Mix(seed ^ author.version.step.value);
  seed = Mix(seed ^ author.attempt.value ^ author.salt << 32);
  for (const char c : name) seed = Mix(seed ^ static_cast<uint8_t>(c));
  return seed;
}

void Fill(std::span<std::byte> bytes, uint64_t begin, uint64_t seed) {
  size_t filled = 0;
  while (filled < bytes.size()) {
    const uint64_t at = begin + filled;
    const uint64_t word = Mix(seed ^ (at / 8));
    const size_t skip = at % 8;
    const size_t part = std::min(bytes.size() - filled, 8 - skip);
    std::memcpy(bytes.data() + filled, reinterpret_cast<const char*>(&word) + skip, part);
    filled += part;
  }
}

TensorSpec Whole(std::string name, uint64_t rows, uint32_t replica, uint32_t replicas) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.global_shape = spec.extent = {rows, kColumns};
  spec.offset = {0, 0};
  spec.replica_index = replica;
  spec.replica_count = replicas;
  return spec;
}

// The rank's rows of a tensor that all ranks share out: some have one row more than others, and of
// few rows some ranks have none.
TensorSpec Rows(std::string name, uint64_t rows, uint64_t index, uint64_t count) {
  TensorSpec spec = Whole(std::move(name), rows, 0, 1);
  const uint64_t begin = rows * index / count;
  spec.offset = {begin, 0};
  spec.extent = {rows * (index + 1) / count - begin, kColumns};
  return spec;
}

void AddRows(std::string name, uint64_t rows, uint64_t index, uint64_t count,
             std::vector<TensorSpec>& tensors, bool is_volatile = false) {
  TensorSpec spec = Rows(std::move(name), rows, index, count);
  if (spec.extent[0] == 0) return;
  spec.is_volatile = is_volatile;
  tensors.push_back(std::move(spec));
}

// Each layer is one rank's.
void AddLayers(uint64_t rows_max, uint64_t index, uint64_t count,
               std::vector<TensorSpec>& tensors) {
  for (uint64_t layer = index; layer < kLayers; layer += count) {
    tensors.push_back(Whole(fmt::format("layer.{}", layer), 1 + (3 + layer * 37) % rows_max, 0, 1));
  }
}

}  // namespace

std::vector<TensorSpec> TensorsOf(Rank rank, uint64_t world) {
  const auto index = static_cast<uint32_t>(rank.value);
  const auto ranks = static_cast<uint32_t>(world);
  std::vector<TensorSpec> tensors;
  tensors.push_back(Whole("embedding", 90, index, ranks));  // 5760 bytes: cut among the replicas
  tensors.push_back(Whole("norm", 3, index, ranks));        // too small to be cut
  AddRows("moments", 61, rank.value, world, tensors);
  // By pairs of ranks, if there are any: even and odd ranks hold halves, each by world / 2 ranks.
  if (world % 2 == 0) {
    TensorSpec half = Rows("head", 140, rank.value % 2, 2);
    half.replica_index = index / 2;
    half.replica_count = ranks / 2;
    tensors.push_back(std::move(half));
  } else {
    tensors.push_back(Whole("head", 140, index, ranks));
  }
  TensorSpec scalar;
  scalar.name = "step";
  scalar.dtype = Dtype::kInt64;
  scalar.replica_index = index;
  scalar.replica_count = ranks;
  tensors.push_back(std::move(scalar));
  AddRows("buffers", 7, rank.value, world, tensors, /*is_volatile=*/true);
  return tensors;
}

TensorModel ShardedTensors(uint64_t rows_max) {
  return [rows_max](Rank rank, uint64_t world) {
    std::vector<TensorSpec> tensors;
    AddLayers(rows_max, rank.value, world, tensors);
    AddRows("moments", kLayers * (1 + rows_max / 5), rank.value, world, tensors);
    AddRows("buffers", 2 * kLayers, rank.value, world, tensors, /*is_volatile=*/true);
    return tensors;
  };
}

TensorModel ReplicatedTensors(uint64_t rows) {
  return [rows](Rank rank, uint64_t world) {
    const auto index = static_cast<uint32_t>(rank.value);
    const auto ranks = static_cast<uint32_t>(world);
    std::vector<TensorSpec> tensors;
    tensors.push_back(Whole("embedding", 70, index, ranks));  // 4480 bytes: cut among the replicas
    tensors.push_back(Whole("norm", 3, index, ranks));        // too small to be cut
    AddRows("moments", kLayers * rows, rank.value, world, tensors);
    AddRows("buffers", 2 * kLayers, rank.value, world, tensors, /*is_volatile=*/true);
    return tensors;
  };
}

TensorModel TensorParallelAmong(uint64_t world, uint64_t rows) {
  return [sharded = world, rows](Rank rank, uint64_t world) {
    std::vector<TensorSpec> tensors;
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      std::string name = fmt::format("layer.{}", layer);
      const uint64_t all = sharded * rows;
      tensors.push_back(world == sharded
                            ? Rows(std::move(name), all, rank.value, world)
                            : Whole(std::move(name), all, static_cast<uint32_t>(rank.value),
                                    static_cast<uint32_t>(world)));
    }
    return tensors;
  };
}

void FillShard(std::span<std::byte> bytes, uint64_t begin, const TensorSpec& spec,
               const Author& author) {
  // Shards are runs of whole rows, so a shard is a run of the tensor's bytes.
  const uint64_t shard_begin = spec.offset.empty() ? 0 : spec.offset[0] * kRowBytes;
  Fill(bytes, shard_begin + begin, Seed(spec.name, author));
}

std::vector<std::byte> ExtrasOf(Rank rank, const Author& author) {
  const uint64_t seed = Seed("extras", author) ^ Mix(rank.value);
  // Once in a while they outgrow the region that was made for the usual ones.
  const uint64_t length = seed % 37 == 0 ? 5000 + seed % 3000 : 10 + seed % 500;
  std::vector<std::byte> extras(length);
  Fill(extras, 0, seed);
  return extras;
}

}  // namespace unreft::sim
