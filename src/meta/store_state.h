// StoreState: keys, leases, the revision and the newest history of the embedded store. Pure.
//
// A change is decided first, as a value, and applied when it is durable; in between the state is
// what it was.
//
// History is bounded by the options: a watch from before `first_watchable` is refused.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meta/store_types.h"

namespace unreft::meta {

struct StoreLimits {
  uint64_t history_events_max = 10'000;  // the newest revision is kept however large it is
  uint64_t history_bytes_max = uint64_t{64} << 20;
  uint64_t txn_ops_max = 128;                      // etcd's; of compares and of each branch
  uint64_t request_bytes_max = uint64_t{3} << 19;  // etcd's 1.5 MiB; keys and values of a Txn
  uint64_t leases_max = 100'000;
  uint64_t reply_bytes_max = uint64_t{64} << 20;    // keys and values of what a Txn reads
  uint64_t stored_bytes_max = uint64_t{256} << 20;  // keys and values of all that is there
};

// What one revision did.
struct StoreRevision {
  Revision revision;
  std::vector<WatchEvent> events;
};

// Decided, not yet applied.
struct StoreChange {
  std::vector<WatchEvent> events;  // all of the next revision; none: the revision stays
  std::vector<std::pair<LeaseId, uint64_t>> leases_granted;  // with their ttl in seconds
  std::vector<LeaseId> leases_ended;
  Revision forget_before;  // history below it, if that is more than is forgotten already
  bool empty() const {
    return events.empty() && leases_granted.empty() && leases_ended.empty() &&
           forget_before.value == 0;
  }
};

struct StoreLease {
  uint64_t ttl_s = 0;
  std::set<std::string> keys;
};

// Single-threaded.
class StoreState {
 public:
  using Keys = std::map<std::string, KeyValue, std::less<>>;

  explicit StoreState(StoreLimits limits) : limits_(limits) {}

  // The reply and what is to be done for it. InvalidArgument: an empty key, a key written twice,
  // too many ops or bytes; NotFound: a lease that is not alive; ResourceExhausted: more would be
  // read or stored than the limits.
  absl::StatusOr<std::pair<StoreReply, StoreChange>> Decide(const StoreTxn& txn) const;
  // FailedPrecondition: there is one of that id; ResourceExhausted.
  absl::StatusOr<StoreChange> DecideGrant(LeaseId lease, uint64_t ttl_s) const;
  // NotFound.
  absl::StatusOr<StoreChange> DecideRevoke(LeaseId lease) const;
  // OutOfRange: forgotten already, or still to come.
  absl::StatusOr<StoreChange> DecideForget(Revision before) const;

  // How many revisions of the history go, oldest first, when `change` is applied.
  size_t HistoryToForget(const StoreChange& change) const;
  // first_watchable() after `change`.
  Revision FirstWatchableAfter(const StoreChange& change) const;
  Revision RevisionAfter(const StoreChange& change) const {
    return {revision_.value + (change.events.empty() ? 0 : 1)};
  }

  void Apply(StoreChange change);

  // For loading, on an empty state: in any order of keys and leases, revisions ascending.
  void LoadHead(Revision revision, Revision first_watchable);
  void LoadKey(KeyValue kv);
  void LoadLease(LeaseId lease, uint64_t ttl_s);
  void LoadRevision(StoreRevision revision);

  Revision revision() const { return revision_; }
  Revision first_watchable() const { return first_watchable_; }
  const Keys& keys() const { return keys_; }
  const std::map<LeaseId, StoreLease>& leases() const { return leases_; }
  const std::deque<StoreRevision>& history() const { return history_; }

 private:
  class Branch;

  absl::Status Check(const StoreTxn& txn) const;
  absl::Status CheckBranch(const std::vector<StoreOp>& ops) const;
  bool Holds(const StoreCompare& compare) const;
  void ApplyEvent(const WatchEvent& event);
  void Remove(const std::string& key);

  const StoreLimits limits_;
  Revision revision_{1};  // as etcd: an empty store is at 1
  Revision first_watchable_{1};
  Keys keys_;
  std::map<LeaseId, StoreLease> leases_;
  std::deque<StoreRevision> history_;
  uint64_t history_events_ = 0;
  uint64_t history_bytes_ = 0;
  uint64_t stored_bytes_ = 0;
};

}  // namespace unreft::meta
