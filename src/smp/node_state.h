// NodeState: what the desks of a node share. Owned and wired by Node; single-threaded on its
// executor.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/process_watcher.h"
#include "base/random.h"
#include "base/record_store.h"
#include "base/segment_store.h"
#include "base/work_pool.h"
#include "smp/coordinator.h"
#include "smp/node_options.h"
#include "smp/node_record.h"
#include "smp/rank_session.h"
#include "smp/slot_store.h"

namespace unreft::smp {

// The outside world of a node, by seam. Everything outlives the node.
struct NodeSeams {
  Executor& executor;
  WorkPool& pool;
  Random& random;
  SegmentStore& segments;
  RecordStore& records;
  ProcessWatcher& processes;
  Log& log;
  FaultPoints* faults = nullptr;  // of a test
};

// For status and metrics; since the start of this daemon process.
struct NodeCounters {
  uint64_t slots_sealed = 0;
  uint64_t versions_committed = 0;
  uint64_t versions_abandoned = 0;
  uint64_t snapshots_skipped = 0;
  uint64_t decisions = 0;
  uint64_t decisions_failed = 0;
  uint64_t sessions_refused = 0;
  uint64_t bytes_sealed = 0;
};

struct NodeState {
  NodeSeams seams;
  NodeOptions options;
  std::string prefix;  // of the names of this node's segments

  std::unique_ptr<NodeRecord> record;
  std::unique_ptr<SlotStore> slots;
  std::unique_ptr<Coordinator> coordinator;
  std::map<Rank, std::unique_ptr<RankSession>> sessions;
  // A decision is being made: nothing is granted, claimed, sealed or retired meanwhile.
  bool timeline_closed = false;
  NodeCounters counters;

  RankSession* SessionOf(Rank rank) {
    const auto it = sessions.find(rank);
    return it == sessions.end() ? nullptr : it->second.get();
  }
  template <typename Message>
  void SendToAll(const Message& message) {
    for (auto& [rank, session] : sessions) session->Send(message);
  }
};

std::vector<WireTensor> ToWire(std::span<const TensorSpec> specs);
std::vector<TensorSpec> FromWire(std::vector<WireTensor> tensors);

}  // namespace unreft::smp
