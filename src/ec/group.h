// Group: the nodes that protect each other's slabs.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace unreft::ec {

struct Group {
  std::vector<NodeSlot> slots;  // ascending: a member's number is its place here
  uint32_t k = 1;               // data chunks; slots.size() - k parities
  friend bool operator==(const Group&, const Group&) = default;
};

}  // namespace unreft::ec
