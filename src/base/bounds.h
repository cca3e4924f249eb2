// Bounds of numbers that come from outside: frames, manifests, records, messages of other nodes. A
// larger one is not believed, wherever it is read. What computes with them needs no care for
// overflow then, and no loop goes over more than the bound says.
#pragma once

#include <cstdint>

namespace unreft {

// Ranks of a job.
inline constexpr uint64_t kRanksMax = uint64_t{1} << 20;

// Of steps and of timelines, which are added to and compared with a following one.
inline constexpr uint64_t kStepMax = (uint64_t{1} << 62) - 1;
inline constexpr uint64_t kTimelineMax = (uint64_t{1} << 62) - 1;

// Of decisions, which are numbered apart from the timelines that they open, and of views.
inline constexpr uint64_t kRoundMax = (uint64_t{1} << 62) - 1;
inline constexpr uint64_t kViewMax = (uint64_t{1} << 32) - 1;

// Of the times that a meta store was written from what the nodes have kept.
inline constexpr uint64_t kEpochMax = (uint64_t{1} << 62) - 1;

}  // namespace unreft
