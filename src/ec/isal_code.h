// IsalCode: the ErasureCode on ISA-L, with a Cauchy matrix.
//
// Parity p of the data chunks d[j] is the sum over j of d[j] / ((k + p) xor j), in GF(2^8) with the
// polynomial 0x11d; the nodes of a group must agree on it. Immutable and thread-safe; allocates
// nothing after Make.
#pragma once

#include <array>
#include <memory>

#include "ec/erasure_code.h"

namespace unreft::ec {

class IsalCode : public ErasureCode {
 public:
  // InvalidArgument for a shape that CheckShape refuses.
  static absl::StatusOr<std::unique_ptr<IsalCode>> Make(CodeShape shape);

  CodeShape shape() const override { return shape_; }
  void Encode(std::span<const std::span<const std::byte>> data,
              std::span<const std::span<std::byte>> parity) const override;
  absl::Status Reconstruct(std::span<const SourceChunk> sources,
                           std::span<const TargetChunk> targets) const override;

 private:
  // One coefficient of each source for each target: never more targets than m, as k chunks are
  // read.
  using Matrix = std::array<std::array<uint8_t, kDataChunksMax>, kParityChunksMax>;

  explicit IsalCode(CodeShape shape);

  uint8_t Generator(uint32_t chunk, uint32_t data) const {
    return generator_[chunk * shape_.k + data];
  }
  // row[i][s]: the part of source s in target i.
  Matrix DecodeMatrix(std::span<const SourceChunk> sources,
                      std::span<const TargetChunk> targets) const;

  const CodeShape shape_;
  std::vector<uint8_t> generator_;  // n x k: the unit matrix, then the parities' coefficients
  std::vector<uint8_t> tables_;     // ISA-L's form of the latter, 32 bytes for each
};

}  // namespace unreft::ec
