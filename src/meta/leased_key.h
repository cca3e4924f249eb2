// LeasedKey: a key of the meta store that is there as long as its owner lives.
//
// It grants itself a lease, keeps it alive, and writes the key attached to it; when the lease is
// lost it begins again. A key that somebody else holds is left alone until it is gone; one of an
// earlier life of its owner is taken over without being away in between. So it is at
// once how a daemon shows that it is present and how it campaigns for the leadership.
//
// That it is held is a matter of liveness only: safety comes from comparing the key's create
// revision and its value in every Txn (docs/protocol.md, rule 20).
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "meta/kv.h"

namespace unreft::meta {

// A key as its holder has written it. Revisions come again in a store that went back: only with the
// value do they say whose key it is.
struct HeldKey {
  Revision created;
  std::string value;
  bool operator==(const HeldKey&) const = default;
};

// Single-threaded on its executor.
class LeasedKey {
 public:
  // Whether a key that is there with this value may be taken over: an earlier life's of ours.
  using MayReplace = absl::AnyInvocable<bool(const std::string& value)>;

  // `on_change`: held, or not any more; in a turn of its own.
  LeasedKey(Kv& kv, Executor& executor, Log& log, std::string key, Duration ttl,
            MayReplace may_replace, absl::AnyInvocable<void()> on_change);
  ~LeasedKey();

  // Begins to hold the key with this value, or changes it.
  void Hold(std::string value);

  // Gives the key up, with its lease, and leaves it alone until the next Hold. `done`: once the
  // store has answered, however; at once if there is no lease.
  void Release(absl::AnyInvocable<void()> done = [] {});

  // The last word of a key that is held: `done` once the store has it, and the lease is left to
  // end by itself. A key that is not held is released. Nothing is called after it.
  void Leave(std::string value, absl::AnyInvocable<void()> done);

  // The key may be free now: look at once.
  void Look();

  // While held: the store does not seem to have it. It is written again; if another's is there, it
  // is held no more.
  void Confirm();

  bool held() const { return held_; }
  // Between Hold and Release.
  bool wanted() const { return !value_.empty(); }
  // That the key is attached to, while it is held.
  LeaseId lease() const { return lease_; }
  // While it is held.
  HeldKey holding() const { return {create_revision_, written_}; }

 private:
  void Grant();
  void OnGranted(absl::StatusOr<LeaseId> lease);
  void ScheduleKeepAlive();
  void KeepAlive();
  void OnKeptAlive(Time asked, const absl::Status& status);
  void Write();
  void OnWritten(const std::string& value, absl::StatusOr<TxnResult> result);
  void Replace(const KeyValue& existing);
  void Lose(const absl::Status& why);
  void Revoke(LeaseId lease, absl::AnyInvocable<void()> done);
  void Again(Duration delay);
  void SetHeld(bool held);

  Kv& kv_;
  Executor& executor_;
  Log& log_;
  const std::string key_;
  const Duration ttl_;
  MayReplace may_replace_;
  absl::AnyInvocable<void()> on_change_;

  std::string value_;    // wanted; empty: the key is not
  std::string written_;  // in the store, while held
  absl::AnyInvocable<void()> on_left_;
  LeaseId lease_;
  Time alive_until_;  // as far as we know
  bool granting_ = false;
  bool writing_ = false;
  bool held_ = false;
  bool confirming_ = false;  // to be written though the value is the same
  Revision create_revision_;
  TimerId keep_alive_ = TimerId::kNone;
  TimerId again_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::meta
