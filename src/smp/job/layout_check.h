// LayoutCheck: whether all ranks' slabs of a version fit together.
//
// Parts of replicas make a whole only if they were cut alike (docs/protocol.md, rule 12) and the
// replicas are equal, as far as they were sampled.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "layout/manifest.h"
#include "smp/job/coordinator.h"

namespace unreft::smp {

using ManifestsByRank = std::map<Rank, std::shared_ptr<const layout::SlotManifest>>;

// Digest of each replicated tensor that the manifest has, by name and box; none where it was not
// sampled, and of ranks that capture all they hold, which may differ.
ReplicaDigests DigestsOf(const layout::SlotManifest& manifest);

// Names two ranks of which one captured all it holds and the other a part of it; empty when there
// are none.
std::string DescribeMixedModes(const ManifestsByRank& manifests);

// Single-threaded on the node's executor.
class LayoutCheck {
 public:
  // `manifests` are those of all ranks of one version. FailedPrecondition naming what does not fit.
  absl::Status Check(const ManifestsByRank& manifests) const;

  // Whether ranks of these layouts, by rank, are those that were found last to fit together.
  bool AreKnownToFit(const std::vector<uint64_t>& layout_digests) const;

 private:
  // Layout digests by rank, the last that fitted together: they are not compared again.
  mutable std::vector<uint64_t> fitting_;
};

}  // namespace unreft::smp
