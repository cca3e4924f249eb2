// StoreEngine: the embedded meta store without its wire - what the simulation runs, and what the
// embedded server serves.
//
// Calls are decided one after the other against the durable state; a change is applied in memory,
// answered and told to watches only when its batch is synced. After a batch that failed, which may
// be on disk all the same, it is taken back there before anything else is written; until then
// changes fail with Unavailable and reads go on.
//
// Single-threaded on its executor. Every callback runs in a turn, exactly once, never inline, none
// after the destructor; it may call the engine, and not destroy it.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/random.h"
#include "base/record_store.h"
#include "meta/store_records.h"
#include "meta/store_state.h"

namespace unreft::meta {

struct StoreEngineOptions {
  StoreLimits limits;
  size_t calls_max = 1024;  // that wait for the disk
  size_t watches_max = 10'000;
  uint64_t lease_ttl_s_min = 1;
  Duration settle_retry = std::chrono::milliseconds(200);  // taking a failed batch back
};

struct StoreWatchEvents {
  Revision revision;
  std::vector<WatchEvent> events;  // all of that revision in the watch's span; one at least
};

class StoreEngine {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using TxnDone = absl::AnyInvocable<void(absl::StatusOr<StoreReply>)>;
  using OnEvents = absl::AnyInvocable<void(StoreWatchEvents)>;
  struct Lease {
    LeaseId id;
    uint64_t ttl_s = 0;
  };
  using LeaseDone = absl::AnyInvocable<void(absl::StatusOr<Lease>)>;

  // All references outlive the engine.
  StoreEngine(Executor& executor, RecordStore& records, Random& random, Log& log,
              StoreEngineOptions options = {});
  // In a turn, or when the executor runs none.
  ~StoreEngine();

  // Reads what is there, or makes a new store; every lease has its full ttl again. Nothing else is
  // called before `done` got ok.
  void Start(Done done);

  void Commit(StoreTxn txn, TxnDone done);
  // Id 0: the engine chooses one.
  void GrantLease(LeaseId id, uint64_t ttl_s, LeaseDone done);
  void KeepAlive(LeaseId id, LeaseDone done);
  void RevokeLease(LeaseId id, Done done);
  // Forgets the history before that revision.
  void Compact(Revision before, Done done);

  // Changes from `start` on, which is not 0. OutOfRange: `start` is forgotten; ResourceExhausted.
  absl::StatusOr<WatchId> Watch(KeySpan span, Revision start, OnEvents on_events);
  void CancelWatch(WatchId watch);

  uint64_t cluster_id() const { return cluster_id_; }
  Revision revision() const { return state_.revision(); }
  Revision first_watchable() const { return state_.first_watchable(); }
  const StoreState& state() const { return state_; }

 private:
  struct Call {
    absl::AnyInvocable<absl::StatusOr<StoreChange>()> decide;
    Done done;
  };
  struct Watcher {
    KeySpan span;
    Revision next;  // of the history, not looked at yet
    OnEvents on_events;
  };

  void OnScanned(absl::StatusOr<std::vector<Record>> records, Done done);
  void StartLeases();
  void Submit(absl::AnyInvocable<absl::StatusOr<StoreChange>()> decide, Done done);
  void PostTask(Task task);
  void Wake();
  void RunCalls();
  void Write(StoreChange change, Done done);
  void OnWritten(absl::Status status);
  void TakeBack();
  void TellWatches();
  void TellWatch(WatchId id);
  void ArmExpiry();
  void Expire();

  Executor& executor_;
  RecordStore& records_;
  Random& random_;
  Log& log_;
  const StoreEngineOptions options_;
  StoreState state_;
  uint64_t cluster_id_ = 0;
  std::map<LeaseId, Time> expiry_;  // of every lease
  std::deque<Call> calls_;
  bool awake_ = false;  // RunCalls is posted
  // The change that is being written, and its way back.
  std::optional<StoreChange> writing_;
  Done writing_done_;
  std::vector<RecordChange> backward_;
  bool unsettled_ = false;  // backward_ must be written first
  std::map<WatchId, Watcher> watches_;
  uint64_t last_watch_ = 0;
  TimerId expiry_timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::meta
