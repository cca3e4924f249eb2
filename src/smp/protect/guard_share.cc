#include "smp/protect/guard_share.h"

#include <utility>

namespace unreft::smp {

GuardShare::GuardShare(std::shared_ptr<const CodedVersion> of,
                       const std::vector<uint64_t>& of_members)
    : coded(std::move(of)) {
  for (const uint32_t member : coded->group.Predecessors()) description_bytes += of_members[member];
}

GuardNeeds GuardShare::Needs() const {
  uint64_t slabs_count = 0;
  for (const MemberSlab& member : coded->slabs.members()) slabs_count += member.slabs_size();
  GuardNeeds needs;
  needs.chunks = coded->group.shape.m;
  needs.sources = coded->group.shape.k;
  needs.positions = coded->layout().positions();
  needs.record_bytes = GuardRecordBytes(slabs_count, description_bytes);
  return needs;
}

}  // namespace unreft::smp
