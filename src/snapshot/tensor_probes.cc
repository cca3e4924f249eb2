#include "snapshot/tensor_probes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/tensor_spec.h"

namespace unreft::snapshot {
namespace {

// Tensors whose lines are asked of the memory before the first of them is used.
constexpr size_t kBatch = 32;

using probing::Fold;

uint64_t AddressOf(const std::byte* at) { return reinterpret_cast<uint64_t>(at); }

uint64_t SeedOf(const TensorSpec& spec) {
  const auto name = std::as_bytes(std::span(spec.name));
  return probing::DigestBytes(Fold(spec.replica_index + probing::kOdd2, probing::kOdd0),
                              AddressOf(name.data()), name.size());
}

void Prefetch(const std::byte* at, uint64_t bytes) {
  for (uint64_t line = 0; line < bytes; line += TensorProbes::kLineBytes) {
    __builtin_prefetch(at + line);
  }
  __builtin_prefetch(at + bytes - 1);  // where lines of the tensor are not those of the memory
}

}  // namespace

void WrittenTensors::Add(uint32_t tensor) {
  if (count < kNamed) first[count] = tensor;
  ++count;
}

void WrittenTensors::Add(const WrittenTensors& others) {
  for (const uint32_t tensor : others.named()) Add(tensor);
  count += others.count - others.named().size();
}

TensorProbes::TensorProbes(const layout::TensorTable& table, std::span<const ShardMemory> memory,
                           uint32_t lines)
    : lines_(std::min(lines, kLinesMax)) {
  if (lines_ == 0) return;
  name_ends_.reserve(table.size());
  for (uint32_t i = 0; i < table.size(); ++i) {
    const TensorSpec& spec = table.specs()[i];
    names_ += spec.name;
    name_ends_.push_back(names_.size());
    const uint64_t bytes = ShardBytes(spec);
    if (spec.is_volatile || bytes == 0) continue;
    (memory[i].on_device ? device_ : host_).push_back({SeedOf(spec), bytes, i});
  }
}

size_t TensorProbes::RangesOf(const Probed& probed, Step step, ProbedRange* ranges) const {
  if (probing::IsWhole(probed.bytes, lines_)) {
    ranges[0] = {0, probed.bytes};
    return 1;
  }
  uint64_t draw = probing::BeginDraws(probed.seed, step.value);
  for (uint32_t line = 0; line < lines_; ++line) {
    draw = probing::NextDraw(draw, line);
    ranges[line] = {probing::PlaceOf(draw, probed.bytes), kLineBytes};
  }
  return lines_;
}

std::vector<ProbedRange> TensorProbes::RangesOf(const Probed& probed, Step step) const {
  std::vector<ProbedRange> ranges(kLinesMax);
  ranges.resize(RangesOf(probed, step, ranges.data()));
  return ranges;
}

std::vector<ProbedRange> TensorProbes::HostRanges(size_t at, Step step) const {
  return RangesOf(host_[at], step);
}

std::vector<ProbedRange> TensorProbes::DeviceRanges(size_t at, Step step) const {
  return RangesOf(device_[at], step);
}

void TensorProbes::DigestHost(Step step, std::span<const ShardMemory> memory, size_t first,
                              std::span<uint64_t> digests) const {
  ProbedRange ranges[kBatch][kLinesMax];
  size_t counts[kBatch];
  for (size_t done = 0; done < digests.size(); done += kBatch) {
    const size_t batch = std::min(kBatch, digests.size() - done);
    for (size_t i = 0; i < batch; ++i) {
      const Probed& probed = host_[first + done + i];
      counts[i] = RangesOf(probed, step, ranges[i]);
      const std::byte* const data = memory[probed.tensor].data;
      for (size_t range = 0; range < counts[i]; ++range) {
        Prefetch(data + ranges[i][range].begin, ranges[i][range].bytes);
      }
    }
    for (size_t i = 0; i < batch; ++i) {
      const Probed& probed = host_[first + done + i];
      const std::byte* const data = memory[probed.tensor].data;
      uint64_t digest = probed.seed;
      for (size_t range = 0; range < counts[i]; ++range) {
        digest = probing::DigestBytes(digest, AddressOf(data + ranges[i][range].begin),
                                      ranges[i][range].bytes);
      }
      digests[done + i] = digest;
    }
  }
}

void TensorProbes::FillDeviceShards(std::span<const ShardMemory> memory,
                                    std::span<probing::Shard> shards) const {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Probed& probed = device_[i];
    shards[i] = {AddressOf(memory[probed.tensor].data), probed.bytes, probed.seed};
  }
}

std::string_view TensorProbes::NameOf(uint32_t tensor) const {
  const uint64_t begin = tensor == 0 ? 0 : name_ends_[tensor - 1];
  return std::string_view(names_).substr(begin, name_ends_[tensor] - begin);
}

std::string TensorProbes::Describe(const WrittenTensors& written) const {
  std::vector<std::string> names;
  for (const uint32_t tensor : written.named()) {
    std::string name = fmt::format("'{}'", NameOf(tensor));
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  const uint64_t more = written.count - written.named().size();
  const bool is_one = names.size() == 1 && more == 0;
  return fmt::format("tensor{} {}{}", is_one ? "" : "s", fmt::join(names, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

}  // namespace unreft::snapshot
