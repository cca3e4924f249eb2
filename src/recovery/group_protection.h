// Whether one group protects what it holds of a version. Pure.
#pragma once

#include <map>

#include "recovery/restorable.h"

namespace unreft::recovery {

// What FindProtected asks of each group: the members whose memories are left hold their parities,
// and copies of the manifests of the members before them. A group that holds nothing lacks nothing.
// `nodes` are the group's members, or more.
bool IsProtected(const ec::Group& group, const std::map<NodeSlot, NodeHolding>& nodes,
                 const Memories& memories);

}  // namespace unreft::recovery
