// GroupView: a protection group as one of its members sees it, and how its slabs of a version lie
// in the group's stripes. Pure.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "ec/stripe_layout.h"

namespace unreft::smp {

// The members of a group, in order, and which of them this node is.
struct GroupView {
  std::vector<NodeSlot> slots;
  ec::CodeShape shape;
  uint32_t self = 0;

  Group ToMessage() const;
  uint32_t members() const { return static_cast<uint32_t>(slots.size()); }
  // Which member that slot is; none when it is none of them.
  std::optional<uint32_t> MemberIn(NodeSlot slot) const;
  // The m members whose descriptions this node keeps: those before it, around the ring.
  std::vector<uint32_t> Predecessors() const;
};

// The group of that slot; none when it is in no group of the view.
std::optional<GroupView> FindGroup(const google::protobuf::RepeatedPtrField<Group>& groups,
                                   NodeSlot self);

// A block of a rank's slab.
struct RankBlock {
  Rank rank;
  uint64_t block = 0;
};

// The slabs of all members of a version. A node's slab is those of its ranks one after the other,
// each in whole blocks.
class GroupSlabs {
 public:
  // `members[i]`: the slabs of the i-th member, by rank. InvalidArgument for sizes that no memory
  // has, or another number of members than the shape's.
  static absl::StatusOr<GroupSlabs> Make(ec::CodeShape shape, uint32_t block_bytes,
                                         std::vector<MemberSlab> members);

  const ec::StripeLayout& layout() const { return layout_; }
  const std::vector<MemberSlab>& members() const { return members_; }

  // Which block of which rank is a member's block.
  RankBlock BlockOf(uint32_t member, uint64_t block) const;
  // The member's block that a rank's block is; none when the member has no such slab or block.
  std::optional<uint64_t> MemberBlockOf(uint32_t member, Rank rank, uint64_t block) const;

 private:
  GroupSlabs(ec::StripeLayout layout, uint32_t block_bytes, std::vector<MemberSlab> members)
      : layout_(std::move(layout)), block_bytes_(block_bytes), members_(std::move(members)) {}

  ec::StripeLayout layout_;
  uint32_t block_bytes_;
  std::vector<MemberSlab> members_;
};

}  // namespace unreft::smp
