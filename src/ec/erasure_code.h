// ErasureCode: the seam to the arithmetic of protection, a systematic RS(k, m) code over GF(2^8).
//
// A stripe has k data chunks (indices 0..k-1) and m parity chunks (indices k..k+m-1) of equal
// length; any k of the k+m give all others.
//
//   chunk   0    1   ...  k-1 │  k   ...  k+m-1
//           └── data ───────┘   └── parity ───┘
//
// Immutable and thread-safe. Works on any part of the chunks: the bytes at one position of all
// chunks belong together, so a range of positions is coded alone.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unreft::ec {

inline constexpr uint32_t kDataChunksMax = 32;
inline constexpr uint32_t kParityChunksMax = 8;

struct CodeShape {
  uint32_t k = 1;
  uint32_t m = 0;
  uint32_t n() const { return k + m; }
  friend bool operator==(const CodeShape&, const CodeShape&) = default;
};

// InvalidArgument, with the limits, for k outside 1..32 or m outside 0..8.
absl::Status CheckShape(CodeShape shape);

// A chunk, or a part of it, to read. No bytes = zeros that are nowhere (a shorter member's end).
struct SourceChunk {
  uint32_t index = 0;
  std::span<const std::byte> bytes;
};

// A chunk, or a part of it, to write.
struct TargetChunk {
  uint32_t index = 0;
  std::span<std::byte> bytes;
};

class ErasureCode {
 public:
  virtual ~ErasureCode() = default;

  virtual CodeShape shape() const = 0;

  // All m parities of k data chunks. `data` in the order of indices, each of the length of the
  // parities or empty (zeros); `parity` in the order of indices, all of one length and not
  // overlapping anything. Broken preconditions are CHECKs.
  virtual void Encode(std::span<const std::span<const std::byte>> data,
                      std::span<const std::span<std::byte>> parity) const = 0;

  // The chunks `targets`, data or parity, from exactly k `sources` of different indices, which name
  // no target. Lengths as in Encode. DataLoss naming k and the number found when there are fewer
  // sources; InvalidArgument for more of them, or for an index out of range or given twice.
  // Linear: the results of some sources, the others empty, and of the others add (xor) to the
  // whole, so survivors can pass sums along (repair pipelining: Li et al., ATC'17).
  virtual absl::Status Reconstruct(std::span<const SourceChunk> sources,
                                   std::span<const TargetChunk> targets) const = 0;
};

// Which k of the chunks at hand to read, for reconstructing others: those first that cost least.
// `available` are indices in the caller's order of preference, none twice; the result keeps that
// order. DataLoss, naming k and what is left, when fewer than k are available; InvalidArgument for
// an index out of range or given twice.
absl::StatusOr<std::vector<uint32_t>> ChooseSources(CodeShape shape,
                                                    std::span<const uint32_t> available);

// What every implementation asks of its arguments before it touches a byte: Encode's preconditions
// (CHECKs), and Reconstruct's, whose lengths and overlaps are CHECKs too.
void CheckEncode(CodeShape shape, std::span<const std::span<const std::byte>> data,
                 std::span<const std::span<std::byte>> parity);
absl::Status CheckReconstruct(CodeShape shape, std::span<const SourceChunk> sources,
                              std::span<const TargetChunk> targets);

}  // namespace unreft::ec
