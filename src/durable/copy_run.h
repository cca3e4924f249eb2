// What each node does for a durable copy, in a process of its own. One of them leads: it writes the
// order, waits until every node has seen it, so that a directory that is not shared is noticed
// before any data is written, and completes the copy when all parts are there. They speak to each
// other by files of the copy alone.
//
//   leads    order ──▶ ready of all? ──▶ go ──▶ its part ──▶ parts of all? ──▶ finish
//   follows  order? ─▶ ready         ──▶ go? ─▶ its part
//
// Of a copy in safetensors "ready" has the names of the node's weights, and "go" what all need to
// know of all of them: keys are written before the data.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/segment_store.h"
#include "durable/cold_store.h"
#include "durable/copy_finish.h"
#include "durable/copy_names.h"
#include "durable/part_writer.h"

namespace unreft::durable {

// How a process waits for what others write.
struct CopyPace {
  std::function<Time()> now;
  // Blocks for so long; false when the process is to end.
  std::function<bool(Duration)> pause;
  Duration look_every = std::chrono::milliseconds(200);
  // For every node to see the directory: file systems of a network keep what they know for a while.
  Duration ready_within = std::chrono::seconds(60);
};

struct CopyTask {
  PartOrder part;
  NodeSlot node;
};

struct LeadTask {
  CopyTask own;
  CopyOrder order;
  std::vector<NodeSlot> nodes;  // that write parts
  KeyMap map;
};

// Blocking, all of them. A copy that fails is taken away by LeadCopy as far as it can; what cannot
// be removed is named, and is no copy, since it has no `.metadata`, or has
// `incomplete.safetensors`.
//
// FailedPrecondition when the directory is not empty, or a node does not see it; Cancelled when
// `pause` says that the process is to end.
absl::StatusOr<FinishedCopy> LeadCopy(SegmentStore& segments, ColdStore& store,
                                      const LeadTask& task, const CopyPace& pace,
                                      OnProgress on_progress);
absl::Status FollowCopy(SegmentStore& segments, ColdStore& store, const CopyTask& task,
                        const CopyPace& pace, OnProgress on_progress);

}  // namespace unreft::durable
