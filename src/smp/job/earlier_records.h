// What a daemon of a release before the kept records has left of a job of one node: in its node
// segment and on its disk. Nothing else remembers it.
#pragma once

#include <absl/status/statusor.h>

#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/job/node_record.h"

namespace unreft::smp {

// The job's records that say the same, as a store would have them that nothing else was written to:
// to be kept where nothing is kept yet. Without a view; empty where there is nothing. DataLoss for
// what no record may say (CheckRecord).
absl::StatusOr<meta::JobState> EarlierRecords(const NodeRecord& record, NodeSlot slot);

}  // namespace unreft::smp
