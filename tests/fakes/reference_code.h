// ReferenceCode: an ErasureCode that is slow and plain enough to be seen to be right.
//
// The same Cauchy code as IsalCode, written from its definition: byte by byte, a multiplication is
// eight shifts (done once for all pairs), and decoding is Gaussian elimination of all k equations.
// Shares no arithmetic with ISA-L. Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "ec/erasure_code.h"

namespace unreft::ec {

class ReferenceCode : public ErasureCode {
 public:
  // `shape` is one that CheckShape accepts (CHECK).
  explicit ReferenceCode(CodeShape shape);

  CodeShape shape() const override { return shape_; }
  void Encode(std::span<const std::span<const std::byte>> data,
              std::span<const std::span<std::byte>> parity) const override;
  absl::Status Reconstruct(std::span<const SourceChunk> sources,
                           std::span<const TargetChunk> targets) const override;

 private:
  const CodeShape shape_;
  // What each chunk is of the data.
  std::vector<std::vector<uint8_t>> generator_;
};

// GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1.
uint8_t GfMultiply(uint8_t a, uint8_t b);
uint8_t GfInverse(uint8_t a);  // a != 0

}  // namespace unreft::ec
