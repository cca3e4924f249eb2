// MemoryBudget: the shared memory that a node's segments take, against what there is. Slots, guards
// and the staging of restores are counted together, used or not.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "base/segment_store.h"
#include "smp/core/node_options.h"

namespace unreft::smp {

// Of segments of one kind, or of several.
struct MemoryUse {
  uint64_t bytes = 0;
  // Of them surely without pages yet: the host still calls these free. A chunk that is being
  // reserved is not among them: what fits is never refused, and pages that cannot be had are told.
  uint64_t unpopulated = 0;

  friend MemoryUse operator+(MemoryUse a, MemoryUse b) {
    return {a.bytes + b.bytes, a.unpopulated + b.unpopulated};
  }
};

// Of guards: what they take, and what those will take that are lacking.
struct GuardMemory {
  uint64_t guards = 0;  // with those that are lacking
  uint64_t bytes = 0;
  uint64_t lacking_bytes = 0;
};

// Of the staging of restores, likewise.
struct StagingMemory {
  uint64_t bytes = 0;
  uint64_t lacking_bytes = 0;
};

// What slots are beside, as a part of a sentence.
std::string DescribeBeside(const GuardMemory& guards, const StagingMemory& staging);

struct MemoryBudget {
  uint64_t needed = 0;  // what exists included
  uint64_t existing = 0;
  uint64_t allowed = 0;  // existing + what may be added
  std::string limit;     // the name of the limit that `allowed` comes from

  bool Fits() const { return needed <= allowed; }
  std::string Describe() const;
};

// Whether `more` bytes fit beside all that the node has. Fails when the store cannot say what is
// free.
absl::StatusOr<MemoryBudget> CountMemory(SegmentStore& segments, const NodeOptions& options,
                                         MemoryUse existing, uint64_t more);

}  // namespace unreft::smp
