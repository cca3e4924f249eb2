// The data of a slab in pieces of one block at most, each checked before it is given out.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "durable/sealed_slab.h"

namespace unreft::durable {

struct CheckedPiece {
  // The CRC32C of what has CRC32C `before`, followed by these bytes.
  uint32_t ExtendCrc(uint32_t before) const;

  std::span<const std::byte> bytes;
  std::optional<uint32_t> crc;  // of a whole block: computed already, to check it
};

class CheckedData {
 public:
  // The slab outlives this.
  explicit CheckedData(SlabReader& slab)
      : slab_(slab), block_bytes_(slab.manifest().block_bytes), buffer_(block_bytes_) {}

  // From `offset` on, `bytes` at most: as many as the block there has. Valid until the next call.
  absl::StatusOr<CheckedPiece> At(uint64_t offset, uint64_t bytes);

  // Fills `into` with what stands at `offset`.
  absl::Status Read(uint64_t offset, std::span<std::byte> into);

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  SlabReader& slab_;
  const uint64_t block_bytes_;
  std::vector<std::byte> buffer_;
  uint64_t block_ = kNone;  // that is in the buffer
  uint32_t block_crc_ = 0;
};

}  // namespace unreft::durable
