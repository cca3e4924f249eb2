#include "ec/erasure_code.h"

#include <fmt/format.h>

#include <bitset>
#include <functional>

#include "base/check.h"

namespace unreft::ec {
namespace {

std::string Name(CodeShape shape) { return fmt::format("RS({},{})", shape.k, shape.m); }

// The chunks that were named so far.
class NamedChunks {
 public:
  explicit NamedChunks(CodeShape shape) : shape_(shape) {}

  absl::Status Add(uint32_t index) {
    if (index >= shape_.n()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: there is no chunk {}, only 0..{}", Name(shape_), index, shape_.n() - 1));
    }
    if (named_[index]) {
      return absl::InvalidArgumentError(
          fmt::format("{}: chunk {} is given twice", Name(shape_), index));
    }
    named_.set(index);
    return absl::OkStatus();
  }

 private:
  const CodeShape shape_;
  std::bitset<kDataChunksMax + kParityChunksMax> named_;
};

absl::Status TooFew(CodeShape shape, size_t found) {
  return absl::DataLossError(
      fmt::format("{}: {} chunks are needed, {} are left", Name(shape), shape.k, found));
}

bool Overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

void CheckSource(std::span<const std::byte> source, std::span<const std::byte> target) {
  if (source.empty()) return;
  UNREFT_CHECK(source.size() == target.size(), "{} bytes to read, {} to write", source.size(),
               target.size());
  UNREFT_CHECK(!Overlap(source, target), "a chunk is read and written");
}

void CheckTargets(std::span<const std::byte> a, std::span<const std::byte> b) {
  UNREFT_CHECK(a.size() == b.size(), "chunks of {} and of {} bytes", a.size(), b.size());
  UNREFT_CHECK(a.empty() || !Overlap(a, b), "two chunks are written to one place");
}

}  // namespace

absl::Status CheckShape(CodeShape shape) {
  if (shape.k >= 1 && shape.k <= kDataChunksMax && shape.m <= kParityChunksMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("{}: k must be 1..{} and m 0..{}", Name(shape),
                                                kDataChunksMax, kParityChunksMax));
}

absl::StatusOr<std::vector<uint32_t>> ChooseSources(CodeShape shape,
                                                    std::span<const uint32_t> available) {
  NamedChunks named(shape);
  for (const uint32_t index : available) {
    if (absl::Status status = named.Add(index); !status.ok()) return status;
  }
  if (available.size() < shape.k) return TooFew(shape, available.size());
  const auto chosen = available.first(shape.k);
  return std::vector<uint32_t>(chosen.begin(), chosen.end());
}

void CheckEncode(CodeShape shape, std::span<const std::span<const std::byte>> data,
                 std::span<const std::span<std::byte>> parity) {
  UNREFT_CHECK(data.size() == shape.k, "{}: {} data chunks", Name(shape), data.size());
  UNREFT_CHECK(parity.size() == shape.m, "{}: {} parity chunks", Name(shape), parity.size());
  for (size_t i = 0; i < parity.size(); ++i) {
    for (const auto& source : data) CheckSource(source, parity[i]);
    for (size_t other = 0; other < i; ++other) CheckTargets(parity[other], parity[i]);
  }
}

absl::Status CheckReconstruct(CodeShape shape, std::span<const SourceChunk> sources,
                              std::span<const TargetChunk> targets) {
  NamedChunks named(shape);
  for (const SourceChunk& source : sources) {
    if (absl::Status status = named.Add(source.index); !status.ok()) return status;
  }
  for (const TargetChunk& target : targets) {
    if (absl::Status status = named.Add(target.index); !status.ok()) return status;
  }
  if (sources.size() < shape.k) return TooFew(shape, sources.size());
  if (sources.size() > shape.k) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} chunks are read, not {}", Name(shape), shape.k, sources.size()));
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    for (const SourceChunk& source : sources) CheckSource(source.bytes, targets[i].bytes);
    for (size_t other = 0; other < i; ++other) CheckTargets(targets[other].bytes, targets[i].bytes);
  }
  return absl::OkStatus();
}

}  // namespace unreft::ec
