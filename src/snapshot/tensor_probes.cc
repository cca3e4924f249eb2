#include "snapshot/tensor_probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/tensor_spec.h"

namespace unreft::snapshot {
namespace {

// Tensors whose lines are asked of the memory before the first of them is used.
constexpr size_t kBatch = 32;

constexpr uint64_t kOdd[] = {0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3,
                             0x589965cc75374cc3, 0x1d8e4e27c47d124f};

uint64_t Multiplied(uint64_t a, uint64_t b, uint64_t& high) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  high = static_cast<uint64_t>(product >> 64);
  return static_cast<uint64_t>(product);
}

// The product's halves, one on the other, as wyhash does (Wang Yi): every bit of both factors
// reaches every bit of it.
uint64_t Fold(uint64_t a, uint64_t b) {
  uint64_t high = 0;
  const uint64_t low = Multiplied(a, b, high);
  return high ^ low;
}

uint64_t Word(const std::byte* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

uint64_t DigestLine(uint64_t digest, const std::byte* line) {
  const uint64_t a = Fold(Word(line) ^ kOdd[0], Word(line + 8) ^ digest);
  const uint64_t b = Fold(Word(line + 16) ^ kOdd[1], Word(line + 24) ^ kOdd[2]);
  const uint64_t c = Fold(Word(line + 32) ^ kOdd[2], Word(line + 40) ^ kOdd[3]);
  const uint64_t d = Fold(Word(line + 48) ^ kOdd[3], Word(line + 56) ^ kOdd[4]);
  return Fold(a ^ kOdd[4], b + kOdd[1]) ^ Fold(c + digest, d ^ kOdd[0]);
}

uint64_t Digest(uint64_t digest, const std::byte* at, uint64_t bytes) {
  for (; bytes >= TensorProbes::kLineBytes; bytes -= TensorProbes::kLineBytes) {
    digest = DigestLine(digest, at);
    at += TensorProbes::kLineBytes;
  }
  if (bytes == 0) return digest;
  std::byte line[TensorProbes::kLineBytes] = {};
  std::memcpy(line, at, bytes);
  return DigestLine(digest + bytes, line);
}

uint64_t SeedOf(const TensorSpec& spec) {
  const auto name = std::as_bytes(std::span(spec.name));
  return Digest(Fold(spec.replica_index + kOdd[2], kOdd[0]), name.data(), name.size());
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
  if (probed.bytes <= lines_ * kLineBytes) {
    ranges[0] = {0, probed.bytes};
    return 1;
  }
  uint64_t draw = Fold(probed.seed ^ kOdd[1], step.value + kOdd[3]);
  const uint64_t places = (probed.bytes + kLineBytes - 1) / kLineBytes;
  for (uint32_t line = 0; line < lines_; ++line) {
    draw = Fold(draw ^ kOdd[2], kOdd[0] + line);
    uint64_t place = 0;  // draw / 2^64 of them
    Multiplied(draw, places, place);
    ranges[line] = {std::min(place * kLineBytes, probed.bytes - kLineBytes), kLineBytes};
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
        digest = Digest(digest, data + ranges[i][range].begin, ranges[i][range].bytes);
      }
      digests[done + i] = digest;
    }
  }
}

std::string_view TensorProbes::NameOf(uint32_t tensor) const {
  const uint64_t begin = tensor == 0 ? 0 : name_ends_[tensor - 1];
  return std::string_view(names_).substr(begin, name_ends_[tensor] - begin);
}

std::string TensorProbes::Describe(const WrittenTensors& written) const {
  std::string text = written.count == 1 ? "tensor " : "tensors ";
  const std::span<const uint32_t> named = written.named();
  for (size_t i = 0; i < named.size(); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", NameOf(named[i]));
  }
  if (written.count > named.size()) {
    text += fmt::format(" and {} more", written.count - named.size());
  }
  return text;
}

}  // namespace unreft::snapshot
