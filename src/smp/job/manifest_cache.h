// ManifestCache: what the ranks of a job hold, as far as their nodes have been asked. Layouts
// change seldom: a rank's manifest is asked for when its digest is new.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "base/ids.h"
#include "layout/manifest.h"
#include "smp/job/layout_check.h"

namespace unreft::smp {

// Single-threaded.
class ManifestCache {
 public:
  // A rank, where it is asked for, and the digest of its layout.
  struct RankLayout {
    NodeSlot home;
    uint64_t digest = 0;
  };
  struct Known {
    ManifestsByRank manifests;
    std::set<NodeSlot> to_ask;  // whose ranks' are not known; then the others say nothing
  };
  Known Find(const std::map<Rank, RankLayout>& ranks) const;

  void Keep(layout::SlotManifest manifest);
  bool Has(Rank rank, uint64_t digest) const { return Find(rank, digest) != nullptr; }

 private:
  // Those of two digests are kept, of what a rank is registered with and of a version that is under
  // way.
  static constexpr size_t kPerRank = 2;
  using ManifestPtr = std::shared_ptr<const layout::SlotManifest>;

  ManifestPtr Find(Rank rank, uint64_t digest) const;

  std::map<Rank, std::deque<ManifestPtr>> manifests_;
};

}  // namespace unreft::smp
