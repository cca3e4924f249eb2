#include "recovery/missing_ranks.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace unreft::recovery {
namespace {

constexpr size_t kNamed = 8;

}  // namespace

MissingRanks FindMissing(const std::set<Rank>& known, uint64_t world) {
  const auto end = known.lower_bound(Rank{world});
  MissingRanks missing;
  missing.count = world - static_cast<uint64_t>(std::distance(known.begin(), end));
  uint64_t next = 0;
  for (auto rank = known.begin(); missing.first.size() < kNamed; ++rank) {
    const uint64_t gap_end = rank == end ? world : rank->value;
    for (; next < gap_end && missing.first.size() < kNamed; ++next) missing.first.push_back(next);
    if (rank == end) break;
    next = rank->value + 1;
  }
  return missing;
}

std::string MissingRanks::Text() const {
  const uint64_t more = count - first.size();
  return absl::StrJoin(first, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace unreft::recovery
