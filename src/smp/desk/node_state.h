// NodeState: what the desks of a node share. Owned and wired by Node; single-threaded on its
// executor.
//
// The room desk is who trains here: who is let in, a rank's session, the ranks that have moved or
// outlive an earlier daemon, and whether what they train is safe. It includes memory, job and core.
// Start here, then read sessions.h and rank_session.h.
#pragma once

#include <absl/functional/any_invocable.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/process_watcher.h"
#include "base/protection_account.h"
#include "base/random.h"
#include "base/record_store.h"
#include "base/segment_store.h"
#include "base/work_pool.h"
#include "ec/code_cache.h"
#include "meta/kv.h"
#include "smp/core/node_options.h"
#include "smp/desk/rank_session.h"
#include "smp/job/coordinator.h"
#include "smp/job/kept_records.h"
#include "smp/job/node_record.h"
#include "smp/job/pins.h"
#include "smp/memory/segment_pool.h"
#include "smp/memory/slot_store.h"
#include "smp/memory/staging_area.h"
#include "smp/memory/tile_pool.h"
#include "transport/counting_transport.h"
#include "transport/transport.h"

namespace unreft::smp {

// Of the certificates in use, the first to expire.
struct CertificateHealth {
  std::optional<double> seconds_left;  // negative: it has expired; none: no TLS
  bool files_are_bad = false;          // those that lie there now were refused, older stay in use
};

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
  meta::Kv* kv = nullptr;         // these two null only where a test needs neither
  Transport* transport = nullptr;
  const TransportCounts* transport_counts = nullptr;  // for status and metrics
  std::function<CertificateHealth()> certificates;    // the same; none: no TLS
  // What dead jobs hold of this host's memory, a sentence for who is refused some; may be empty.
  std::function<std::string()> memory_of_the_dead;
  std::function<std::optional<uint64_t>()> store_bytes;  // of the meta store's database
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
  uint64_t device_checksum_mismatches = 0;
};

struct NodeState {
  NodeSeams seams;
  NodeOptions options;
  std::string prefix;  // of the names of this node's segments

  std::unique_ptr<NodeRecord> record;
  std::unique_ptr<KeptRecords> kept;
  std::unique_ptr<SegmentPool> memory;
  std::unique_ptr<SlotStore> slots;
  std::unique_ptr<StagingArea> staging;
  std::unique_ptr<TilePool> tiles;
  ec::CodeCache codes;
  std::unique_ptr<Coordinator> coordinator;
  std::map<Rank, std::unique_ptr<RankSession>> sessions;
  // Trainers that an earlier daemon process served, that live, and that have not come back yet.
  std::vector<ProcessLife> lives_before;
  // A decision is being made: nothing is granted, claimed, sealed or retired meanwhile.
  bool timeline_closed = false;
  // The timeline that was decided last, and the nodes that its ranks asked from, where it is known.
  Timeline decided;
  std::map<Rank, NodeSlot> homes;
  // As the leader says: the decision of that round is in force, and one of the processes that it
  // was made for has ended.
  uint64_t over_round = 0;
  // Whether that rank takes part in the newest timeline on another node, or not at all.
  bool TrainsElsewhere(Rank rank) const {
    if (homes.empty() || decided != record->chain().newest()) return false;
    const auto home = homes.find(rank);
    return home == homes.end() || home->second != options.node;
  }
  // The commit before the newest one; in a new timeline, or a new process, what it stands on.
  Version commit_before;
  // What is kept for somebody; none before the coordinator has said it.
  std::optional<PinRecord> pins;
  // Whether a version that is older than the committed one may go: nothing is kept for anybody
  // where there are no slots for it.
  bool MayRetire(Version version) const {
    return pins ? !IsPinned(*pins, version) : options.pins == 0;
  }
  // Slots have more blocks ready, were sealed or given up: other nodes may wait for that.
  absl::AnyInvocable<void()> on_slot_change;
  NodeCounters counters;
  // Of what this node's ranks report, and what is committed.
  ProtectionAccount account;
  bool ranks_came = false;  // to this process of the daemon
  // Whether this node is in the job, as its member says.
  Standing standing;
  std::string job_obstacle;  // as the leader says

  RankSession* SessionOf(Rank rank) {
    const auto it = sessions.find(rank);
    return it == sessions.end() ? nullptr : it->second.get();
  }
  // Coordinator::Node's. Those that an earlier process served may yet connect, and count.
  uint64_t RanksServed() const {
    const auto takes_part = [](const auto& of_rank) { return !of_rank.second->superseded; };
    return static_cast<uint64_t>(std::ranges::count_if(sessions, takes_part)) + lives_before.size();
  }
  template <typename Message>
  void SendToAll(const Message& message) {
    for (auto& [rank, session] : sessions) session->Send(message);
  }
};

}  // namespace unreft::smp
