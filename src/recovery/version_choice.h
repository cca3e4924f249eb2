// Which sealed versions are whole, and what others lack. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "recovery/timeline.h"

namespace unreft::recovery {

// One rank's slab of one version, sealed.
struct SealedSlab {
  Version version;
  Rank rank;
  uint64_t world = 0;  // ranks that the version needs
};

// The live versions for which every rank's slab is sealed, newest first.
std::vector<Version> WholeVersions(std::span<const SealedSlab> slabs, const TimelineChain& chain);

// For an error: of every live version that is not whole, newest first, which ranks are missing:
// "2:41 lacks rank 3; 2:40 lacks ranks 1, 2".
std::string DescribeMissing(std::span<const SealedSlab> slabs, const TimelineChain& chain);

}  // namespace unreft::recovery
