#include "smp/protect/group_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/slot_header.h"

namespace unreft::smp {
namespace {

// Of a member's slabs together. What is computed of them for a guard does not overflow.
constexpr uint64_t kBlocksMax = uint64_t{1} << 40;
constexpr uint64_t kBytesMax = uint64_t{1} << 56;

}  // namespace

Group GroupView::ToMessage() const {
  Group group;
  for (const NodeSlot slot : slots) group.add_slots(slot.value);
  group.set_k(shape.k);
  return group;
}

std::optional<uint32_t> GroupView::MemberIn(NodeSlot slot) const {
  const auto found = std::ranges::find(slots, slot);
  if (found == slots.end()) return std::nullopt;
  return static_cast<uint32_t>(found - slots.begin());
}

std::vector<uint32_t> GroupView::Predecessors() const {
  std::vector<uint32_t> predecessors;
  for (uint32_t i = 1; i <= shape.m; ++i) {
    predecessors.push_back((self + members() - i) % members());
  }
  return predecessors;
}

std::optional<GroupView> FindGroup(const google::protobuf::RepeatedPtrField<Group>& groups,
                                   NodeSlot self) {
  for (const Group& group : groups) {
    GroupView view;
    bool found = false;
    for (const uint64_t slot : group.slots()) {
      if (slot == self.value) {
        view.self = view.members();
        found = true;
      }
      view.slots.push_back(NodeSlot{slot});
    }
    if (!found || group.k() > view.members()) continue;
    view.shape = {group.k(), view.members() - group.k()};
    return view;
  }
  return std::nullopt;
}

absl::StatusOr<GroupSlabs> GroupSlabs::Make(ec::CodeShape shape, uint32_t block_bytes,
                                            std::vector<MemberSlab> members) {
  std::vector<uint64_t> blocks;
  for (const MemberSlab& member : members) {
    uint64_t total = 0;
    for (const RankSlab& slab : member.slabs()) {
      total += BlockCount(slab.data_bytes(), block_bytes);
      if (total > std::min(kBlocksMax, kBytesMax / block_bytes)) {
        return absl::InvalidArgumentError(fmt::format(
            "with the slab of rank {} of {} bytes a member has more than {} blocks of {} bytes",
            slab.rank(), slab.data_bytes(), std::min(kBlocksMax, kBytesMax / block_bytes),
            block_bytes));
      }
    }
    blocks.push_back(total);
  }
  absl::StatusOr<ec::StripeLayout> layout = ec::StripeLayout::Make(shape, std::move(blocks));
  if (!layout.ok()) return layout.status();
  return GroupSlabs(*std::move(layout), block_bytes, std::move(members));
}

RankBlock GroupSlabs::BlockOf(uint32_t member, uint64_t block) const {
  for (const RankSlab& slab : members_[member].slabs()) {
    const uint64_t blocks = BlockCount(slab.data_bytes(), block_bytes_);
    if (block < blocks) return {Rank{slab.rank()}, block};
    block -= blocks;
  }
  UNREFT_CHECK(false, "member {} has no such block", member);
  return {};
}

std::optional<uint64_t> GroupSlabs::MemberBlockOf(uint32_t member, Rank rank,
                                                  uint64_t block) const {
  uint64_t before = 0;
  for (const RankSlab& slab : members_[member].slabs()) {
    const uint64_t blocks = BlockCount(slab.data_bytes(), block_bytes_);
    if (slab.rank() == rank.value) {
      return block < blocks ? std::optional(before + block) : std::nullopt;
    }
    before += blocks;
  }
  return std::nullopt;
}

}  // namespace unreft::smp
