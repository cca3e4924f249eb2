// A fresh start: an operator orders that what was committed is given up. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

struct FreshStart {
  meta::JobChange change;  // the one Txn by which it is declared
  std::string said;        // for the log
};

// By an order that came to that node; `declared` is the timeline that it opens, on which no earlier
// version is a candidate any more. Unavailable where it is not known yet what the nodes have kept,
// FailedPrecondition while ranks are connected and `force` is not given.
absl::StatusOr<FreshStart> OrderFreshStart(NodeSlot from, bool force, Timeline declared,
                                           const meta::JobState& records, const RollCall& roll);

// By such an order, since which nothing was committed.
bool WasGivenUp(const meta::JobState& records);

}  // namespace unreft::smp
