// Brings a durable copy back into the memory of a node, as its daemon orders (copy.proto): which
// copies there are, how large their slabs are, and the slabs themselves into slots that the daemon
// has set aside. Blocking, all of it.
//
// DataLoss, naming the file, when a copy is not as it was written; the other codes are those of
// CopyReader, LoadSlab and the store.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <string>

#include "base/segment_store.h"
#include "durable/cold_store.h"
#include "durable/part_writer.h"

namespace unreft::durable {

// The complete copies of the job, the newest first; `directory` is what the shelf is of. One whose
// order cannot be read, so that nobody knows of which job it is, comes last and without an order.
absl::StatusOr<CopyPartReply> SearchShelf(ColdStore& shelf, const std::string& directory,
                                          const std::string& job);

// Of `order.ranks`. FailedPrecondition when the copy is of another version than the order.
absl::StatusOr<CopyPartReply> DescribeSlabs(ColdStore& copy, const CopyPartRequest& order);

// Fills the slots of `order.into` and says what their seals are to be. FailedPrecondition when a
// slot is not of the generation of the order, or has no room.
absl::StatusOr<CopyPartReply> FillSlots(ColdStore& copy, SegmentStore& segments,
                                        const CopyPartRequest& order, OnProgress on_progress);

}  // namespace unreft::durable
