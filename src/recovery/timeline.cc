#include "recovery/timeline.h"

#include <algorithm>
#include <ranges>

namespace unreft::recovery {

std::optional<Version> TimelineChain::ParentOf(Timeline timeline) const {
  for (const TimelineOrigin& origin : origins_) {
    if (origin.timeline == timeline) return origin.parent;
  }
  return std::nullopt;
}

void TimelineChain::Open(Timeline next, Version parent) {
  std::vector<TimelineOrigin> kept;
  Version stands_on = parent;
  for (const TimelineOrigin& origin : origins_ | std::views::reverse) {
    if (origin.timeline != stands_on.timeline) continue;
    kept.push_back(origin);
    stands_on = origin.parent;
  }
  std::ranges::reverse(kept);
  origins_ = std::move(kept);
  origins_.push_back({next, parent});
}

void TimelineChain::Trim(size_t limit) {
  if (origins_.size() > limit) origins_.erase(origins_.begin(), origins_.end() - limit);
}

bool TimelineChain::IsLive(Version version) const {
  Version newest_live{newest(), Step{UINT64_MAX}};
  while (newest_live.timeline.value != 0) {
    if (version.timeline == newest_live.timeline) return version.step <= newest_live.step;
    const std::optional<Version> parent = ParentOf(newest_live.timeline);
    // Parents are older, so the walk ends even if what was read is odd.
    if (!parent || parent->timeline >= newest_live.timeline) return false;
    newest_live = *parent;
  }
  return false;
}

}  // namespace unreft::recovery
