// CodedVersion: a version as it is encoded in one group: whose slabs, in which stripes, by what
// code. Whoever encodes, decodes or serves blocks of it shares it.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "ec/code_cache.h"
#include "smp/protect/group_view.h"

namespace unreft::smp {

// Immutable.
struct CodedVersion {
  Version version;
  GroupView group;
  GroupSlabs slabs;
  std::shared_ptr<const ec::ErasureCode> code;
  uint64_t coding = 0;  // which slabs are encoded (CodingOf): of the guards that belong to it

  // Of that group's members, by index. InvalidArgument as GroupSlabs::Make.
  static absl::StatusOr<std::shared_ptr<const CodedVersion>> Make(Version version, GroupView group,
                                                                  uint32_t block_bytes,
                                                                  std::vector<MemberSlab> members,
                                                                  ec::CodeCache& codes);
  // As a guard of one of the group's members has it, for the one in that slot. DataLoss, too, when
  // the record is of a group without it.
  static absl::StatusOr<std::shared_ptr<const CodedVersion>> FromRecord(Version version,
                                                                        const GuardRecord& record,
                                                                        NodeSlot self,
                                                                        uint32_t block_bytes,
                                                                        ec::CodeCache& codes);

  const ec::StripeLayout& layout() const { return slabs.layout(); }
  // Who holds a chunk of a stripe.
  NodeSlot HolderOf(uint32_t stripe, uint32_t chunk) const {
    return group.slots[layout().MemberOf(stripe, chunk)];
  }
  // The block of a data chunk; none for zeros that are nowhere.
  std::optional<RankBlock> DataAt(uint32_t stripe, uint32_t chunk, uint64_t position) const;
  // What the holder of a chunk is asked for it; none for zeros that are nowhere.
  std::optional<ReadRequest> ReadOf(uint32_t stripe, uint32_t chunk, uint64_t position) const;
};

}  // namespace unreft::smp
