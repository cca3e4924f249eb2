// Opening a segment that an earlier process of this node may have left.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "base/segment_store.h"

namespace unreft::smp {

// NotFound where there is none that this daemon can use: no such segment at all, another user's, or
// one whose maker died before it had a size, which is removed. Whoever is told so may create it.
absl::StatusOr<std::unique_ptr<Segment>> OpenUsable(SegmentStore& segments,
                                                    const std::string& name);

}  // namespace unreft::smp
