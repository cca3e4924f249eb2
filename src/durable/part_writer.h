// Writes what one node has of a durable copy: the items of its ranks, and what describes them. It
// reads whole blocks, each checked, and writes each byte once, in the order of the file.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/segment_store.h"
#include "durable/cold_store.h"
#include "durable/copy_plan.h"
#include "durable/sealed_slab.h"

namespace unreft::durable {

struct PartOrder {
  std::string job;
  uint64_t place = 0;  // the number that the node's daemon was started with
  Version version;
  std::string id;  // of the copy
  std::vector<Rank> ranks;
  uint64_t item_bytes_max = kItemBytesMax;
};

// Bytes of files: written, and in all. False: the writing is to end, with Cancelled.
using OnProgress = absl::FunctionRef<bool(uint64_t written, uint64_t bytes)>;

// Whether the store has the order of this very copy. NotFound when it has none, or another's: then
// it is not the place that who ordered the copy writes to.
absl::Status CheckOrder(ColdStore& store, const PartOrder& order);

// The items of a slab, then its record.
absl::Status WriteSlab(SlabReader& slab, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress);

// All ranks of the order, of this node's memory. FailedPrecondition naming the ranks whose slabs
// are not there.
absl::Status WritePart(SegmentStore& segments, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress);

}  // namespace unreft::durable
