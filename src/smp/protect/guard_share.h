// GuardShare: a node's share in the protection of a version: what its guard is to hold. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "smp/memory/memory_plan.h"
#include "smp/protect/coded_version.h"

namespace unreft::smp {

struct GuardShare {
  std::shared_ptr<const CodedVersion> coded;  // its group's `self` is that node
  uint64_t description_bytes = 0;             // that those of the members before it take

  // `of_members`: what the description of each takes at most.
  GuardShare(std::shared_ptr<const CodedVersion> of, const std::vector<uint64_t>& of_members);

  GuardNeeds Needs() const;
};

}  // namespace unreft::smp
