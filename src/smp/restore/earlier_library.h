// What is said of a plan to a library of an earlier release, which reads no pages: each row by
// itself (docs/formats/local_session.md, "Where the bytes are"). Pure.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/session_frames.h"

namespace unreft::smp {

// Puts the slots of this node and the rows that lie in them into the plan. ResourceExhausted, with
// the numbers, for more rows than a frame holds, those of staged sources among them.
absl::Status NameRows(std::span<const PlanSource> sources, std::span<const PlanPiece> pieces,
                      Plan& plan);

// What of each block goes where, of pieces of one source: told with the block when it is staged.
std::map<uint64_t, std::vector<WirePiece>> RowsByBlock(std::span<const PlanPiece> pieces,
                                                       uint64_t block_bytes);

}  // namespace unreft::smp
