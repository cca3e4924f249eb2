#include "ec/stripe_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace unreft::ec {

absl::StatusOr<StripeLayout> StripeLayout::Make(CodeShape shape,
                                                std::vector<uint64_t> member_blocks) {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  if (member_blocks.size() != shape.n()) {
    return absl::InvalidArgumentError(
        fmt::format("RS({},{}): a group of {} members is needed, {} are given", shape.k, shape.m,
                    shape.n(), member_blocks.size()));
  }
  const uint64_t largest = *std::max_element(member_blocks.begin(), member_blocks.end());
  const uint64_t positions = largest / shape.k + (largest % shape.k == 0 ? 0 : 1);
  return StripeLayout(shape, std::move(member_blocks), positions);
}

uint32_t StripeLayout::MemberOf(uint32_t stripe, uint32_t chunk) const {
  const uint32_t n = members();
  UNREFT_CHECK(stripe < n && chunk < n, "stripe {}, chunk {} of {}", stripe, chunk, n);
  const uint32_t role = chunk < shape_.k ? shape_.m + chunk : chunk - shape_.k;
  return (stripe + role) % n;
}

Cell StripeLayout::CellOf(uint32_t member, uint64_t block) const {
  const uint32_t n = members();
  UNREFT_CHECK(member < n, "member {} of {}", member, n);
  UNREFT_CHECK(block < member_blocks_[member], "block {} of {} of member {}", block,
               member_blocks_[member], member);
  const auto chunk = static_cast<uint32_t>(block % shape_.k);
  return {
      .stripe = (member + n - shape_.m - chunk) % n, .chunk = chunk, .position = block / shape_.k};
}

std::optional<uint64_t> StripeLayout::BlockAt(uint32_t stripe, uint32_t chunk,
                                              uint64_t position) const {
  UNREFT_CHECK(chunk < shape_.k, "data chunk {} of {}", chunk, shape_.k);
  UNREFT_CHECK(position < positions_, "position {} of {}", position, positions_);
  const uint64_t block = position * shape_.k + chunk;
  if (block >= member_blocks_[MemberOf(stripe, chunk)]) return std::nullopt;
  return block;
}

std::vector<uint32_t> StripeLayout::ParityStripes(uint32_t member) const {
  const uint32_t n = members();
  UNREFT_CHECK(member < n, "member {} of {}", member, n);
  std::vector<uint32_t> stripes;
  for (uint32_t parity = 0; parity < shape_.m; ++parity) {
    stripes.push_back((member + n - parity) % n);
  }
  return stripes;
}

}  // namespace unreft::ec
