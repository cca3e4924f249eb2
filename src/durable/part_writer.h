// Writes what one node has of a durable copy: the items of its ranks, and what describes them. It
// reads whole blocks, each checked, and writes each byte once, in the order of the file.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/segment_store.h"
#include "durable/cold_store.h"
#include "durable/copy_plan.h"
#include "durable/sealed_slab.h"
#include "durable/weight_names.h"
#include "durable/writing_progress.h"

namespace unreft::durable {

struct PartOrder {
  std::string job;
  uint64_t place = 0;  // the number that the node's daemon was started with
  Version version;
  std::string id;  // of the copy
  std::vector<Rank> ranks;
  // The segments of those that are in no slot, since they were decoded.
  std::map<Rank, std::string> decoded;
  uint64_t item_bytes_max = kItemBytesMax;
  std::optional<WeightNames> weights;  // of a copy in safetensors; none: a DCP copy
};

// The order of this very copy. NotFound when the store has none, or another's: then it is not the
// place that who ordered the copy writes to.
absl::StatusOr<CopyOrder> ReadOrder(ColdStore& store, const PartOrder& order);

// The slabs of the order's ranks, of this node's memory. FailedPrecondition naming the ranks whose
// slabs are not there.
absl::StatusOr<std::vector<std::unique_ptr<SealedSlab>>> OpenSlabs(SegmentStore& segments,
                                                                   const PartOrder& order);

// What the copy has of a slab, then its record.
absl::Status WriteSlab(SlabReader& slab, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress);

// All that OpenSlabs finds.
absl::Status WritePart(SegmentStore& segments, ColdStore& store, const PartOrder& order,
                       OnProgress on_progress);

}  // namespace unreft::durable
