// TensorProbes: a few cache lines of every registered tensor, by which a client sees that somebody
// wrote it (docs/second_net.md). Pure; immutable, so it is shared by threads.
//
// Where the lines of a tensor lie depends on its name, its replica index and the step alone: each
// step looks elsewhere, and each replica too, since a write that one of them sees gives the version
// up on all. A tensor that is not larger than its lines is looked at whole. Volatile tensors and
// empty ones have none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "layout/tensor_table.h"
#include "snapshot/probe_digest.h"

namespace unreft::snapshot {

// Where the bytes of a shard are.
struct ShardMemory {
  std::byte* data = nullptr;
  bool on_device = false;
};

// Where the shards of a table lie; immutable, so a snapshot under way keeps what it began with.
using MemoryPtr = std::shared_ptr<const std::vector<ShardMemory>>;

// Bytes of a shard.
struct ProbedRange {
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

// Tensors that were written, as they are named to people: the first few, and how many.
struct WrittenTensors {
  static constexpr size_t kNamed = 3;
  std::array<uint32_t, kNamed> first{};  // indices in the table, min(count, kNamed) of them
  uint64_t count = 0;

  std::span<const uint32_t> named() const {
    return std::span(first).first(count < kNamed ? count : kNamed);
  }

  void Add(uint32_t tensor);
  void Add(const WrittenTensors& others);
};

class TensorProbes {
 public:
  static constexpr uint64_t kLineBytes = probing::kLineBytes;
  static constexpr uint32_t kLinesMax = probing::kLinesMax;

  TensorProbes() = default;  // of no tensors
  // `lines` of each tensor, kLinesMax at most; 0 = no tensor is looked at. `memory[i]` holds the
  // shard of `table.specs()[i]`; on which side it lies is all that counts.
  TensorProbes(const layout::TensorTable& table, std::span<const ShardMemory> memory,
               uint32_t lines);

  // Tensors in host memory that are looked at, and those on a device; each side counted from 0.
  size_t host_count() const { return host_.size(); }
  size_t device_count() const { return device_.size(); }
  uint32_t host_tensor(size_t at) const { return host_[at].tensor; }
  uint32_t device_tensor(size_t at) const { return device_[at].tensor; }

  // What is looked at of a tensor at that step: at most `lines` ranges.
  std::vector<ProbedRange> HostRanges(size_t at, Step step) const;
  std::vector<ProbedRange> DeviceRanges(size_t at, Step step) const;

  // Digests of those in host memory from the `first`-th on, one per element of `digests`.
  void DigestHost(Step step, std::span<const ShardMemory> memory, size_t first,
                  std::span<uint64_t> digests) const;

  // Those on a device, device_count() of them, as their digests are computed there
  // (probing::DigestShard).
  void FillDeviceShards(std::span<const ShardMemory> memory,
                        std::span<probing::Shard> shards) const;
  uint32_t lines() const { return lines_; }

  // "tensor 'a'", "tensors 'a', 'b', 'c' and 4 more". Of several shards of one tensor, as a range
  // of a box is, those that would be named give one name; the others count each.
  std::string Describe(const WrittenTensors& written) const;

 private:
  struct Probed {
    uint64_t seed = 0;
    uint64_t bytes = 0;
    uint32_t tensor = 0;
  };

  size_t RangesOf(const Probed& probed, Step step, ProbedRange* ranges) const;
  std::vector<ProbedRange> RangesOf(const Probed& probed, Step step) const;
  std::string_view NameOf(uint32_t tensor) const;

  uint32_t lines_ = 0;
  std::vector<Probed> host_;
  std::vector<Probed> device_;
  std::string names_;  // of all tensors, one behind the other
  std::vector<uint64_t> name_ends_;
};

}  // namespace unreft::snapshot
