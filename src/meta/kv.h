// Kv: the seam to the meta store, in the words of the etcd v3 API.
//
// Keys and values are bytes; keys are ordered. The store has one revision, raised by each Txn that
// changes something; a key remembers the revision that created it, the last that modified it, and
// how many modifications it has seen since (its version). A lease is alive while it is kept alive;
// the keys attached to it are deleted with it.
//
// Used only in turns of the executor given at construction; every callback runs in such a turn,
// never inline, and none after the destructor.
//
// Errors: Unavailable and DeadlineExceeded mean that the outcome is unknown - a Txn may have been
// applied - and the caller reads back (docs/protocol.md, rule 20). Each method's own are named
// there. A message names the store's address.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"

namespace unreft::meta {

using LeaseId = Id<struct LeaseTag>;      // 0 = none
using Revision = Id<struct RevisionTag>;  // of the store
enum class WatchId : uint64_t { kNone = 0 };

struct KeyValue {
  std::string key;
  std::string value;
  Revision create_revision;
  Revision mod_revision;
  uint64_t version = 0;  // modifications since its creation, the first included
  LeaseId lease;
  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// The keys that begin with `key` if `is_prefix`, else that key.
struct KeyRange {
  std::string key;
  bool is_prefix = false;
};

// Holds if the key's field equals the operand. A key that does not exist has revisions and version
// 0 and compares as different from every value.
struct Compare {
  enum class Field { kCreateRevision, kModRevision, kVersion, kValue };
  std::string key;
  Field field = Field::kModRevision;
  uint64_t number = 0;  // of revision or version
  std::string value;    // of kValue

  static Compare Created(std::string key, Revision revision) {
    return {std::move(key), Field::kCreateRevision, revision.value, ""};
  }
  static Compare Modified(std::string key, Revision revision) {
    return {std::move(key), Field::kModRevision, revision.value, ""};
  }
  static Compare Absent(std::string key) { return Created(std::move(key), Revision{0}); }
  static Compare Equals(std::string key, std::string value) {
    return {std::move(key), Field::kValue, 0, std::move(value)};
  }
};

struct PutOp {
  std::string key;
  std::string value;
  LeaseId lease;
};
struct DeleteOp {
  KeyRange range;
};
struct GetOp {
  KeyRange range;
};
using Op = std::variant<PutOp, DeleteOp, GetOp>;

// If all of `compares` hold, the ops of `then` are applied, else those of `otherwise`: all at once.
// No key is written twice.
struct Txn {
  std::vector<Compare> compares;
  std::vector<Op> then;
  std::vector<Op> otherwise;
};

struct TxnResult {
  bool succeeded = false;  // the compares held
  Revision revision;       // of the store, after it
  // One per GetOp of the branch taken, in order; each sorted by key.
  std::vector<std::vector<KeyValue>> gets;
};

struct WatchEvent {
  enum class Kind { kPut, kDelete };
  Kind kind = Kind::kPut;
  KeyValue kv;  // of a delete: the key and, as mod_revision, the revision that deleted it
};

class Kv {
 public:
  using TxnDone = absl::AnyInvocable<void(absl::StatusOr<TxnResult>)>;
  using LeaseDone = absl::AnyInvocable<void(absl::StatusOr<LeaseId>)>;
  using Done = absl::AnyInvocable<void(absl::Status)>;
  // Events of one revision come together, revisions in order.
  using OnEvents = absl::AnyInvocable<void(std::vector<WatchEvent>)>;

  virtual ~Kv() = default;

  // Also the way to read (no compares, GetOps). InvalidArgument for what the store refuses: a key
  // written twice, an empty key; NotFound for a put with a lease that is not alive.
  virtual void Commit(Txn txn, TxnDone done) = 0;

  virtual void GrantLease(Duration ttl, LeaseDone done) = 0;
  // Ok: alive for its ttl from the moment the store got this. NotFound when it has ended.
  virtual void KeepAlive(LeaseId lease, Done done) = 0;
  // Ends it now, and deletes its keys. NotFound when it has ended.
  virtual void RevokeLease(LeaseId lease, Done done) = 0;

  // Every change of the keys in `range` from `start` on, that revision included; `start` 0: from
  // now on (whoever read at revision r begins with r + 1). No event is left out or comes twice.
  // A watch lives as long as its connection, since what it goes on with may be another history.
  // `on_end` runs once, last, and not after CancelWatch; whoever hears it reads anew and watches
  // from there. Unavailable: there is no connection. OutOfRange: the store has forgotten `start`.
  // DataLoss: the store is another one or older than what was seen, naming both revisions.
  virtual WatchId Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) = 0;
  virtual void CancelWatch(WatchId watch) = 0;
};

// A single read. The result's kvs are sorted by key.
void Get(Kv& kv, KeyRange range,
         absl::AnyInvocable<void(absl::StatusOr<std::vector<KeyValue>>)> done);

}  // namespace unreft::meta
