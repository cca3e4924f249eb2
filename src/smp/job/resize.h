// Resizing: an operator orders on how many nodes the job is to run, and on which it is not
// (docs/protocol.md, rule 32). The order stands until it is replaced or taken back. Pure.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <set>
#include <string>

#include "base/ids.h"
#include "meta/job_store.h"
#include "smp/core/node_options.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// What is ordered, and on which nodes ranks run by what the nodes tell.
ResizeReply DescribeResize(const meta::JobState& records, const RollCall& roll);

// The one Txn by which that is ordered, or taken back. InvalidArgument where the job has no such
// nodes or too few of them, FailedPrecondition where it has one alone, NotFound where there is
// nothing to take back.
absl::StatusOr<meta::JobChange> OrderResize(const ResizeRequest& request,
                                            const meta::JobState& records,
                                            const NodeOptions& options);

// For the log: "the job is to run on 3 nodes, without node 1".
std::string DescribeOrder(const TimelineRecord& timeline);

// Of the nodes that are there, those that a decision for ranks on `asking` leaves out of the
// protection groups: a host that is to be taken away must not be waited for. None from which a rank
// asks, nor any without an order.
std::set<NodeSlot> LeftOutByOrder(const TimelineRecord& timeline, const std::set<NodeSlot>& there,
                                  const std::set<NodeSlot>& asking);

}  // namespace unreft::smp
