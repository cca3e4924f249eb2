// TimelineChain: which versions are candidates for a restore. Pure.
//
// A timeline is opened by each recovery decision on top of the version that it restored. Steps of a
// timeline after the point where the next one branched off are dead for ever (docs/protocol.md,
// rule 1):
//
//   timeline 1:  1 2 3 4 5 6 7        decision: restore 1:5, open 2
//   timeline 2:            6 7 8      candidates now: 2:8 2:7 2:6 1:5 1:4 ...; never 1:6, 1:7
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace unreft::recovery {

struct TimelineOrigin {
  Timeline timeline;
  Version parent;  // 0:0 for a fresh start
  friend bool operator==(const TimelineOrigin&, const TimelineOrigin&) = default;
};

class TimelineChain {
 public:
  TimelineChain() = default;
  explicit TimelineChain(std::vector<TimelineOrigin> origins) : origins_(std::move(origins)) {}

  // 0 when none was ever opened.
  Timeline newest() const { return origins_.empty() ? Timeline{0} : origins_.back().timeline; }
  std::span<const TimelineOrigin> origins() const { return origins_; }  // oldest first
  std::optional<Version> ParentOf(Timeline timeline) const;

  // Opens that timeline, which is newer than all others. Those that `parent` does not stand on are
  // forgotten: they are dead for ever.
  void Open(Timeline next, Version parent);

  // Forgets the oldest origins beyond `limit`.
  void Trim(size_t limit);

  // Whether nothing of it can be under way: it is neither the newest nor one that is opened after
  // it, of which nothing was heard yet.
  bool IsOver(Timeline timeline) const {
    return timeline != newest() && NumberOf(timeline) <= NumberOf(newest());
  }

  // Whether the version lies on the ancestor chain of the newest timeline.
  bool IsLive(Version version) const;

 private:
  std::vector<TimelineOrigin> origins_;
};

}  // namespace unreft::recovery
