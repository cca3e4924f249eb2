// StripeLayout: where the blocks of a protection group's members lie in its stripes. Pure.
//
// A group of n = k + m members has n stripes. In stripe s the members s, s+1, ..., s+m-1 (modulo n)
// hold the parities, and the k others, beginning with s+m, are its data sources; so every member
// sends and receives the same. The first parity holder is the stripe's aggregator: it reads the k
// data blocks and encodes all m parities, the others read theirs from it.
//
//   RS(2,2)      stripe 0   stripe 1   stripe 2   stripe 3
//   member 0     parity 0   data 1     data 0     parity 1
//   member 1     parity 1   parity 0   data 1     data 0
//   member 2     data 0     parity 1   parity 0   data 1
//   member 3     data 1     data 0     parity 1   parity 0
//
// A member's blocks are dealt out in turn: block b is at position b / k of the stripe in which the
// member is data source b % k. So the first k blocks that are captured complete the first position
// of all stripes, and encoding runs along with the capture. Members of different size are padded
// with blocks of zeros that are nowhere and never travel. Memory: m x (largest member / k) per
// member.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ec/erasure_code.h"

namespace unreft::ec {

// A block's place: chunk `chunk` (0..n-1, data first) of stripe `stripe`, at `position` blocks from
// the chunk's beginning.
struct Cell {
  uint32_t stripe = 0;
  uint32_t chunk = 0;
  uint64_t position = 0;
  friend bool operator==(const Cell&, const Cell&) = default;
};

class StripeLayout {
 public:
  // `member_blocks[i]`: blocks of data of the group's i-th member; some may be 0.
  // InvalidArgument when their number is not k + m, naming both, or for a shape that CheckShape
  // refuses.
  static absl::StatusOr<StripeLayout> Make(CodeShape shape, std::vector<uint64_t> member_blocks);

  CodeShape shape() const { return shape_; }
  uint32_t members() const { return shape_.n(); }
  uint32_t stripes() const { return shape_.n(); }
  // Of each chunk, data or parity, in blocks.
  uint64_t positions() const { return positions_; }
  uint64_t member_blocks(uint32_t member) const { return member_blocks_[member]; }

  // Who holds a chunk of a stripe.
  uint32_t MemberOf(uint32_t stripe, uint32_t chunk) const;
  uint32_t Aggregator(uint32_t stripe) const { return MemberOf(stripe, shape_.k); }

  // Where a member's data block lies. `block` < member_blocks(member).
  Cell CellOf(uint32_t member, uint64_t block) const;
  // The data block of the member that holds it; none for a block of zeros that is nowhere.
  // `chunk` < k, `position` < positions().
  std::optional<uint64_t> BlockAt(uint32_t stripe, uint32_t chunk, uint64_t position) const;

  // The stripes whose parity `0..m-1` the member holds, in the order of that number: a member keeps
  // m parity chunks.
  std::vector<uint32_t> ParityStripes(uint32_t member) const;

 private:
  StripeLayout(CodeShape shape, std::vector<uint64_t> member_blocks, uint64_t positions)
      : shape_(shape), member_blocks_(std::move(member_blocks)), positions_(positions) {}

  CodeShape shape_;
  std::vector<uint64_t> member_blocks_;
  uint64_t positions_ = 0;
};

}  // namespace unreft::ec
