// Which ranks of a world are not among those that are known. Costs what is known and what is named,
// never what the world is said to be. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"

namespace unreft::recovery {

struct MissingRanks {
  uint64_t count = 0;
  std::vector<uint64_t> first;  // the lowest of them

  bool none() const { return count == 0; }
  // "3", "1, 2", "0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
  std::string Text() const;
};

MissingRanks FindMissing(const std::set<Rank>& known, uint64_t world);

}  // namespace unreft::recovery
