#include "ec/isal_code.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace unreft::ec {
namespace {

constexpr size_t kTableBytes = 32;  // of one coefficient
// ISA-L reads all sources once for every few targets: every time but the first they are to be in
// the L2 cache. (32,8) on cold memory 3.7 GB/s, in one piece 2.0; up to (8,4) it makes no
// difference.
constexpr size_t kPassBytes = size_t{256} << 10;
constexpr size_t kTileBytesMin = size_t{8} << 10;
constexpr size_t kVectorBytes = 64;  // ISA-L codes fewer bytes one by one

// Sources that are not zero, with ISA-L's tables for them, and the targets. Fixed in size, so that
// coding allocates nothing.
struct Pass {
  int sources = 0;
  int targets = 0;
  std::array<unsigned char*, kDataChunksMax> source;
  std::array<unsigned char*, kParityChunksMax> target;

  void AddSource(std::span<const std::byte> bytes) {
    // ISA-L takes mutable pointers to what it only reads.
    source[sources++] =
        const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
  }
  void AddTarget(std::span<std::byte> bytes) {
    target[targets++] = reinterpret_cast<unsigned char*>(bytes.data());
  }

  // Consumes the pass.
  void Run(const uint8_t* tables, size_t length) {
    if (sources == 0) {  // ISA-L asks for one
      for (int i = 0; i < targets; ++i) std::memset(target[i], 0, length);
      return;
    }
    const size_t streams = static_cast<size_t>(sources + targets);
    const size_t tile = std::max(kTileBytesMin, kPassBytes / streams / kVectorBytes * kVectorBytes);
    while (length > 0) {
      const size_t bytes = length < tile + kVectorBytes ? length : tile;
      ec_encode_data(static_cast<int>(bytes), sources, targets, const_cast<unsigned char*>(tables),
                     source.data(), target.data());
      for (int i = 0; i < sources; ++i) source[i] += bytes;
      for (int i = 0; i < targets; ++i) target[i] += bytes;
      length -= bytes;
    }
  }
};

using Tables = std::array<uint8_t, kTableBytes * kDataChunksMax * kParityChunksMax>;

}  // namespace

absl::StatusOr<std::unique_ptr<IsalCode>> IsalCode::Make(CodeShape shape) {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  return std::unique_ptr<IsalCode>(new IsalCode(shape));
}

IsalCode::IsalCode(CodeShape shape)
    : shape_(shape), generator_(shape.n() * shape.k), tables_(kTableBytes * shape.m * shape.k) {
  const int k = static_cast<int>(shape.k);
  gf_gen_cauchy1_matrix(generator_.data(), static_cast<int>(shape.n()), k);
  ec_init_tables(k, static_cast<int>(shape.m), generator_.data() + shape.k * shape.k,
                 tables_.data());
}

void IsalCode::Encode(std::span<const std::span<const std::byte>> data,
                      std::span<const std::span<std::byte>> parity) const {
  CheckEncode(shape_, data, parity);
  if (parity.empty() || parity[0].empty()) return;
  Pass pass;
  for (const auto& bytes : parity) pass.AddTarget(bytes);
  for (const auto& bytes : data) {
    if (!bytes.empty()) pass.AddSource(bytes);
  }
  if (pass.sources == static_cast<int>(shape_.k)) {
    pass.Run(tables_.data(), parity[0].size());
    return;
  }
  // Zeros add nothing: their columns are left out of the tables.
  Tables tables;
  uint8_t* to = tables.data();
  for (size_t i = 0; i < tables_.size() / kTableBytes; ++i) {
    if (data[i % shape_.k].empty()) continue;
    std::memcpy(to, tables_.data() + i * kTableBytes, kTableBytes);
    to += kTableBytes;
  }
  pass.Run(tables.data(), parity[0].size());
}

absl::Status IsalCode::Reconstruct(std::span<const SourceChunk> sources,
                                   std::span<const TargetChunk> targets) const {
  absl::Status status = CheckReconstruct(shape_, sources, targets);
  if (!status.ok() || targets.empty() || targets[0].bytes.empty()) return status;
  const Matrix rows = DecodeMatrix(sources, targets);
  Pass pass;
  for (const SourceChunk& source : sources) {
    if (!source.bytes.empty()) pass.AddSource(source.bytes);
  }
  std::array<uint8_t, kDataChunksMax * kParityChunksMax> coefficients;
  size_t count = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    pass.AddTarget(targets[i].bytes);
    for (size_t s = 0; s < sources.size(); ++s) {
      if (!sources[s].bytes.empty()) coefficients[count++] = rows[i][s];
    }
  }
  Tables tables;
  ec_init_tables(pass.sources, pass.targets, coefficients.data(), tables.data());
  pass.Run(tables.data(), targets[0].bytes.size());
  return absl::OkStatus();
}

// With the parities p that are read, the data d that is read, and the data x that is not:
// p = G(p,x) x + G(p,d) d, so x = G(p,x)^-1 (p + G(p,d) d). Only the square G(p,x) is inverted, m x
// m at most, which any part of a Cauchy matrix allows. A target, data or parity, is then G(t,x) x +
// G(t,d) d.
IsalCode::Matrix IsalCode::DecodeMatrix(std::span<const SourceChunk> sources,
                                        std::span<const TargetChunk> targets) const {
  std::array<bool, kDataChunksMax> read{};
  std::array<uint32_t, kParityChunksMax> parity;   // chunks that are read
  std::array<uint32_t, kParityChunksMax> missing;  // data chunks that are not; as many
  size_t parities = 0;
  size_t unknowns = 0;
  for (const SourceChunk& source : sources) {
    if (source.index < shape_.k) {
      read[source.index] = true;
    } else {
      parity[parities++] = source.index;
    }
  }
  for (uint32_t j = 0; j < shape_.k; ++j) {
    if (!read[j]) missing[unknowns++] = j;
  }
  UNREFT_CHECK(unknowns == parities);

  std::array<uint8_t, kParityChunksMax * kParityChunksMax> square;
  std::array<uint8_t, kParityChunksMax * kParityChunksMax> inverse;
  for (size_t r = 0; r < parities; ++r) {
    for (size_t c = 0; c < unknowns; ++c)
      square[r * unknowns + c] = Generator(parity[r], missing[c]);
  }
  if (unknowns > 0) {
    const int order = static_cast<int>(unknowns);
    UNREFT_CHECK(gf_invert_matrix(square.data(), inverse.data(), order) == 0);
  }

  Matrix unknown{};  // [c][s]: the part of source s in the data chunk missing[c]
  for (size_t c = 0; c < unknowns; ++c) {
    for (size_t s = 0, next_parity = 0; s < sources.size(); ++s) {
      if (sources[s].index >= shape_.k) {
        unknown[c][s] = inverse[c * unknowns + next_parity++];
        continue;
      }
      for (size_t r = 0; r < parities; ++r) {
        unknown[c][s] ^= gf_mul(inverse[c * unknowns + r], Generator(parity[r], sources[s].index));
      }
    }
  }

  Matrix rows{};
  for (size_t i = 0; i < targets.size(); ++i) {
    const uint32_t chunk = targets[i].index;
    for (size_t s = 0; s < sources.size(); ++s) {
      if (sources[s].index < shape_.k) rows[i][s] = Generator(chunk, sources[s].index);
      for (size_t c = 0; c < unknowns; ++c) {
        rows[i][s] ^= gf_mul(Generator(chunk, missing[c]), unknown[c][s]);
      }
    }
  }
  return rows;
}

}  // namespace unreft::ec
