#include "meta/leased_key.h"

#include <utility>

#include "base/format.h"

namespace unreft::meta {

LeasedKey::LeasedKey(Kv& kv, Executor& executor, Log& log, std::string key, Duration ttl,
                     MayReplace may_replace, absl::AnyInvocable<void()> on_change)
    : kv_(kv),
      executor_(executor),
      log_(log),
      key_(std::move(key)),
      ttl_(ttl),
      may_replace_(std::move(may_replace)),
      on_change_(std::move(on_change)) {}

LeasedKey::~LeasedKey() {
  executor_.Cancel(keep_alive_);
  executor_.Cancel(again_);
}

void LeasedKey::Hold(std::string value) {
  value_ = std::move(value);
  if (lease_.value == 0) return Grant();
  Write();
}

void LeasedKey::Release(absl::AnyInvocable<void()> done) {
  value_.clear();
  executor_.Cancel(std::exchange(keep_alive_, TimerId::kNone));
  executor_.Cancel(std::exchange(again_, TimerId::kNone));
  SetHeld(false);
  if (lease_.value == 0) return done();
  Revoke(std::exchange(lease_, LeaseId{}), std::move(done));
}

void LeasedKey::Leave(std::string value, absl::AnyInvocable<void()> done) {
  if (!held_) return Release(std::move(done));
  on_left_ = std::move(done);
  executor_.Cancel(std::exchange(keep_alive_, TimerId::kNone));
  Hold(std::move(value));
}

void LeasedKey::Look() {
  if (value_.empty() || held_) return;
  if (lease_.value == 0) return Grant();
  Write();
}

void LeasedKey::Confirm() {
  if (!held_) return;
  confirming_ = true;
  Write();
}

// --- the lease ---

void LeasedKey::Grant() {
  if (granting_ || lease_.value != 0) return;
  granting_ = true;
  kv_.GrantLease(
      ttl_, lifetime_.Bind([this](absl::StatusOr<LeaseId> lease) { OnGranted(std::move(lease)); }));
}

void LeasedKey::OnGranted(absl::StatusOr<LeaseId> lease) {
  granting_ = false;
  if (value_.empty()) {  // released meanwhile
    if (lease.ok()) Revoke(*lease, [] {});
    return;
  }
  if (!lease.ok()) return Again(ttl_ / 3);
  lease_ = *lease;
  alive_until_ = executor_.Now() + ttl_;
  ScheduleKeepAlive();
  Write();
}

void LeasedKey::ScheduleKeepAlive() {
  executor_.Cancel(keep_alive_);
  keep_alive_ = executor_.After(ttl_ / 4, [this] {
    keep_alive_ = TimerId::kNone;
    KeepAlive();
  });
}

void LeasedKey::KeepAlive() {
  kv_.KeepAlive(
      lease_, lifetime_.Bind([this, lease = lease_, asked = executor_.Now()](absl::Status status) {
        if (lease == lease_) OnKeptAlive(asked, status);
      }));
}

void LeasedKey::OnKeptAlive(Time asked, const absl::Status& status) {
  if (status.ok()) {
    alive_until_ = asked + ttl_;
  } else if (absl::IsNotFound(status) || executor_.Now() >= alive_until_) {
    return Lose(status);
  }
  ScheduleKeepAlive();
}

void LeasedKey::Lose(const absl::Status& why) {
  log_.Warn("meta store: the lease of {} is lost: {}", key_, why.message());
  executor_.Cancel(std::exchange(keep_alive_, TimerId::kNone));
  lease_ = LeaseId{};
  SetHeld(false);
  Grant();
}

// If that does not arrive, the lease ends by itself.
void LeasedKey::Revoke(LeaseId lease, absl::AnyInvocable<void()> done) {
  kv_.RevokeLease(lease, [done = std::move(done)](const absl::Status&) mutable { done(); });
}

// --- the key ---

void LeasedKey::Write() {
  if (writing_ || lease_.value == 0 || value_.empty()) return;
  if (held_ && written_ == value_ && !confirming_) return;
  confirming_ = false;
  writing_ = true;
  Txn txn;
  if (held_) {
    txn.compares.push_back(Compare::Created(key_, create_revision_));
    txn.compares.push_back(Compare::Equals(key_, written_));
  } else {
    txn.compares.push_back(Compare::Absent(key_));
  }
  txn.then.push_back(PutOp{key_, value_, lease_});
  txn.otherwise.push_back(GetOp{{key_}});
  kv_.Commit(std::move(txn), lifetime_.Bind([this, value = value_,
                                             lease = lease_](absl::StatusOr<TxnResult> result) {
    if (lease == lease_) return OnWritten(value, std::move(result));
    // Attached to a lease that was lost meanwhile: what is there is found by the next try.
    writing_ = false;
    Again(Duration{});
  }));
}

void LeasedKey::OnWritten(const std::string& value, absl::StatusOr<TxnResult> result) {
  writing_ = false;
  if (!result.ok()) {
    // The outcome is unknown; what is there is found by the next try.
    if (absl::IsNotFound(result.status())) return Lose(result.status());
    return Again(ttl_ / 4);
  }
  if (result->succeeded) {
    if (!held_) create_revision_ = result->revision;
    written_ = value;
    SetHeld(true);
    if (on_left_ != nullptr && written_ == value_) return std::exchange(on_left_, nullptr)();
    return Write();  // the value may have changed meanwhile
  }
  SetHeld(false);
  if (result->gets.empty() || result->gets[0].empty()) return Again(Duration{});
  const KeyValue& existing = result->gets[0][0];
  if (existing.lease == lease_) {  // an earlier Write of unknown outcome
    create_revision_ = existing.create_revision;
    written_ = existing.value;
    SetHeld(true);
    return Write();
  }
  if (may_replace_(existing.value)) return Replace(existing);
  Again(ttl_);  // somebody else's; Look comes earlier when it is seen to go
}

// A key of an earlier life of ours. It is never away meanwhile: another could take its place.
void LeasedKey::Replace(const KeyValue& existing) {
  writing_ = true;
  Txn txn;
  txn.compares.push_back(Compare::Modified(key_, existing.mod_revision));
  txn.then.push_back(PutOp{key_, value_, lease_});
  kv_.Commit(std::move(txn),
             lifetime_.Bind([this, value = value_, lease = lease_,
                             created = existing.create_revision](absl::StatusOr<TxnResult> result) {
               writing_ = false;
               if (lease != lease_) return Again(Duration{});
               if (!result.ok()) {
                 if (absl::IsNotFound(result.status())) return Lose(result.status());
                 return Again(ttl_ / 4);
               }
               if (!result->succeeded) return Write();
               create_revision_ = created;
               written_ = value;
               SetHeld(true);
               Write();  // the value may have changed meanwhile
             }));
}

void LeasedKey::Again(Duration delay) {
  executor_.Cancel(again_);
  again_ = executor_.After(delay, [this] {
    again_ = TimerId::kNone;
    Look();
    if (held_) Write();
  });
}

void LeasedKey::SetHeld(bool held) {
  if (held_ == held) return;
  held_ = held;
  executor_.Post(lifetime_.Bind([this] { on_change_(); }));
}

}  // namespace unreft::meta
