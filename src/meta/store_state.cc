#include "meta/store_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace unreft::meta {
namespace {

uint64_t BytesOf(const KeyValue& kv) { return kv.key.size() + kv.value.size(); }

uint64_t BytesOf(const std::vector<WatchEvent>& events) {
  uint64_t bytes = 0;
  for (const WatchEvent& event : events) bytes += BytesOf(event.kv);
  return bytes;
}

template <typename T>
bool Compared(const T& found, const T& wanted, StoreCompare::Result result) {
  switch (result) {
    case StoreCompare::Result::kEqual:
      return found == wanted;
    case StoreCompare::Result::kGreater:
      return found > wanted;
    case StoreCompare::Result::kLess:
      return found < wanted;
    case StoreCompare::Result::kNotEqual:
      break;
  }
  return found != wanted;
}

absl::Status CheckSpan(const KeySpan& span) {
  if (span.begin.empty()) return absl::InvalidArgumentError("a key is empty");
  return absl::OkStatus();
}

}  // namespace

// The ops of one branch, one after the other, over a state that they do not change: what they write
// is kept apart.
class StoreState::Branch {
 public:
  explicit Branch(const StoreState& state) : state_(state), revision_{state.revision_.value + 1} {}

  absl::StatusOr<StoreOpReply> Run(const StoreOp& op) {
    if (const auto* range = std::get_if<StoreRange>(&op)) return Range(*range);
    if (const auto* put = std::get_if<StorePut>(&op)) return Put(*put);
    return Delete(std::get<StoreDelete>(op));
  }

  StoreChange TakeChange() { return std::move(change_); }

 private:
  // What is in the span now, in order.
  std::vector<const KeyValue*> Find(const KeySpan& span) const {
    std::map<std::string_view, const KeyValue*> found;
    for (auto it = state_.keys_.lower_bound(span.begin);
         it != state_.keys_.end() && span.Contains(it->first); ++it) {
      found[it->first] = &it->second;
    }
    for (auto it = written_.lower_bound(span.begin);
         it != written_.end() && span.Contains(it->first); ++it) {
      found.erase(it->first);
      if (it->second) found[it->first] = &*it->second;
    }
    std::vector<const KeyValue*> kvs;
    for (const auto& [key, kv] : found) kvs.push_back(kv);
    return kvs;
  }

  absl::StatusOr<StoreOpReply> Range(const StoreRange& range) {
    std::vector<const KeyValue*> found = Find(range.span);
    if (range.descending) std::reverse(found.begin(), found.end());
    StoreOpReply reply;
    reply.count = found.size();
    if (range.count_only) return reply;
    if (range.limit != 0 && found.size() > range.limit) found.resize(range.limit);
    for (const KeyValue* kv : found) {
      if (absl::Status status = Count(range.keys_only ? kv->key.size() : BytesOf(*kv));
          !status.ok()) {
        return status;
      }
      reply.kvs.push_back(*kv);
      if (range.keys_only) reply.kvs.back().value.clear();
    }
    return reply;
  }

  absl::StatusOr<StoreOpReply> Put(const StorePut& put) {
    if (put.lease.value != 0 && !state_.leases_.contains(put.lease)) {
      return absl::NotFoundError(fmt::format("lease {:x} of a put is not alive", put.lease.value));
    }
    StoreOpReply reply;
    KeyValue kv{.key = put.key,
                .value = put.value,
                .create_revision = revision_,
                .mod_revision = revision_,
                .version = 1,
                .lease = put.lease};
    if (const auto found = Find({put.key, ""}); !found.empty()) {
      kv.create_revision = found.front()->create_revision;
      kv.version = found.front()->version + 1;
      if (absl::Status status = Count(BytesOf(*found.front())); !status.ok()) return status;
      reply.kvs.push_back(*found.front());
    }
    reply.count = reply.kvs.size();
    change_.events.push_back({WatchEvent::Kind::kPut, kv});
    written_[put.key] = std::move(kv);
    return reply;
  }

  absl::StatusOr<StoreOpReply> Delete(const StoreDelete& erase) {
    StoreOpReply reply;
    for (const KeyValue* kv : Find(erase.span)) {
      if (absl::Status status = Count(BytesOf(*kv)); !status.ok()) return status;
      reply.kvs.push_back(*kv);
    }
    for (const KeyValue& kv : reply.kvs) {
      KeyValue deleted{.key = kv.key};
      deleted.mod_revision = revision_;
      change_.events.push_back({WatchEvent::Kind::kDelete, std::move(deleted)});
      written_[kv.key] = std::nullopt;
    }
    reply.count = reply.kvs.size();
    return reply;
  }

  // Of the reply, before it takes the memory.
  absl::Status Count(uint64_t bytes) {
    reply_bytes_ += bytes;
    if (reply_bytes_ <= state_.limits_.reply_bytes_max) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        fmt::format("a Txn that reads more than {} bytes: ask for less at a time",
                    state_.limits_.reply_bytes_max));
  }

  const StoreState& state_;
  const Revision revision_;
  uint64_t reply_bytes_ = 0;
  std::map<std::string, std::optional<KeyValue>, std::less<>> written_;
  StoreChange change_;
};

absl::StatusOr<std::pair<StoreReply, StoreChange>> StoreState::Decide(const StoreTxn& txn) const {
  if (absl::Status status = Check(txn); !status.ok()) return status;
  StoreReply reply;
  reply.succeeded = std::all_of(txn.compares.begin(), txn.compares.end(),
                                [this](const StoreCompare& compare) { return Holds(compare); });
  Branch branch(*this);
  for (const StoreOp& op : reply.succeeded ? txn.then : txn.otherwise) {
    absl::StatusOr<StoreOpReply> done = branch.Run(op);
    if (!done.ok()) return done.status();
    reply.replies.push_back(*std::move(done));
  }
  StoreChange change = branch.TakeChange();
  uint64_t put_bytes = 0;
  for (const WatchEvent& event : change.events) {
    if (event.kind == WatchEvent::Kind::kPut) put_bytes += BytesOf(event.kv);
  }
  if (put_bytes > 0 && stored_bytes_ + put_bytes > limits_.stored_bytes_max) {
    // etcd's words, by which clients know it.
    return absl::ResourceExhaustedError(
        fmt::format("etcdserver: mvcc: database space exceeded: {} bytes, {} are stored, at most "
                    "{} may be",
                    put_bytes, stored_bytes_, limits_.stored_bytes_max));
  }
  reply.revision = RevisionAfter(change);
  return std::make_pair(std::move(reply), std::move(change));
}

absl::StatusOr<StoreChange> StoreState::DecideGrant(LeaseId lease, uint64_t ttl_s) const {
  if (leases_.contains(lease)) {
    return absl::FailedPreconditionError(fmt::format("lease {:x} exists already", lease.value));
  }
  if (leases_.size() >= limits_.leases_max) {
    return absl::ResourceExhaustedError(
        fmt::format("{} leases, the limit is {}", leases_.size(), limits_.leases_max));
  }
  StoreChange change;
  change.leases_granted.emplace_back(lease, ttl_s);
  return change;
}

absl::StatusOr<StoreChange> StoreState::DecideRevoke(LeaseId lease) const {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) {
    return absl::NotFoundError(fmt::format("lease {:x} is not alive", lease.value));
  }
  StoreChange change;
  change.leases_ended.push_back(lease);
  for (const std::string& key : found->second.keys) {
    KeyValue deleted{.key = key};
    deleted.mod_revision = {revision_.value + 1};
    change.events.push_back({WatchEvent::Kind::kDelete, std::move(deleted)});
  }
  return change;
}

absl::StatusOr<StoreChange> StoreState::DecideForget(Revision before) const {
  if (before <= first_watchable_ || before > revision_) {
    return absl::OutOfRangeError(
        fmt::format("history before revision {}: forgotten before {}, the store is at {}", before,
                    first_watchable_, revision_));
  }
  StoreChange change;
  change.forget_before = before;
  return change;
}

absl::Status StoreState::Check(const StoreTxn& txn) const {
  const uint64_t ops = std::max({txn.compares.size(), txn.then.size(), txn.otherwise.size()});
  if (ops > limits_.txn_ops_max) {
    return absl::InvalidArgumentError(
        fmt::format("{} ops or compares in a Txn, the limit is {}", ops, limits_.txn_ops_max));
  }
  uint64_t bytes = 0;
  for (const StoreCompare& compare : txn.compares) {
    if (compare.key.empty()) return absl::InvalidArgumentError("the key of a compare is empty");
    bytes += compare.key.size() + compare.value.size();
  }
  for (const auto* ops_of : {&txn.then, &txn.otherwise}) {
    if (absl::Status status = CheckBranch(*ops_of); !status.ok()) return status;
    for (const StoreOp& op : *ops_of) {
      if (const auto* put = std::get_if<StorePut>(&op))
        bytes += put->key.size() + put->value.size();
    }
  }
  if (bytes > limits_.request_bytes_max) {
    return absl::InvalidArgumentError(
        fmt::format("{} bytes in a Txn, the limit is {}", bytes, limits_.request_bytes_max));
  }
  return absl::OkStatus();
}

absl::Status StoreState::CheckBranch(const std::vector<StoreOp>& ops) const {
  std::vector<std::string_view> put_keys;
  for (const StoreOp& op : ops) {
    if (const auto* put = std::get_if<StorePut>(&op)) {
      if (put->key.empty()) return absl::InvalidArgumentError("the key of a put is empty");
      put_keys.push_back(put->key);
    } else {
      const auto* erase = std::get_if<StoreDelete>(&op);
      const KeySpan& span = erase != nullptr ? erase->span : std::get<StoreRange>(op).span;
      if (absl::Status status = CheckSpan(span); !status.ok()) return status;
    }
  }
  std::sort(put_keys.begin(), put_keys.end());
  const auto twice = std::adjacent_find(put_keys.begin(), put_keys.end());
  bool is_twice = twice != put_keys.end();
  for (const StoreOp& op : ops) {
    const auto* erase = std::get_if<StoreDelete>(&op);
    if (erase == nullptr) continue;
    is_twice |= std::any_of(put_keys.begin(), put_keys.end(),
                            [&](std::string_view key) { return erase->span.Contains(key); });
  }
  if (is_twice) return absl::InvalidArgumentError("a key is written twice in one Txn");
  return absl::OkStatus();
}

bool StoreState::Holds(const StoreCompare& compare) const {
  const auto found = keys_.find(compare.key);
  // etcd: a key that is not there has no value, not even an empty one; its numbers are 0.
  if (found == keys_.end() && compare.target == StoreCompare::Target::kValue) return false;
  const KeyValue kv = found == keys_.end() ? KeyValue{} : found->second;
  switch (compare.target) {
    case StoreCompare::Target::kVersion:
      return Compared(kv.version, compare.number, compare.result);
    case StoreCompare::Target::kCreateRevision:
      return Compared(kv.create_revision.value, compare.number, compare.result);
    case StoreCompare::Target::kModRevision:
      return Compared(kv.mod_revision.value, compare.number, compare.result);
    case StoreCompare::Target::kLease:
      return Compared(kv.lease.value, compare.number, compare.result);
    case StoreCompare::Target::kValue:
      break;
  }
  return Compared(kv.value, compare.value, compare.result);
}

size_t StoreState::HistoryToForget(const StoreChange& change) const {
  uint64_t events = history_events_ + change.events.size();
  uint64_t bytes = history_bytes_ + BytesOf(change.events);
  // The newest revision stays: watches are told from here.
  const size_t most = history_.size() - (change.events.empty() && !history_.empty() ? 1 : 0);
  size_t count = 0;
  while (count < most &&
         (events > limits_.history_events_max || bytes > limits_.history_bytes_max ||
          history_[count].revision < change.forget_before)) {
    events -= history_[count].events.size();
    bytes -= BytesOf(history_[count].events);
    ++count;
  }
  return count;
}

Revision StoreState::FirstWatchableAfter(const StoreChange& change) const {
  const size_t count = HistoryToForget(change);
  Revision first = std::max(first_watchable_, change.forget_before);
  if (count > 0) first = std::max(first, Revision{history_[count - 1].revision.value + 1});
  return first;
}

void StoreState::Apply(StoreChange change) {
  first_watchable_ = FirstWatchableAfter(change);
  for (size_t count = HistoryToForget(change); count > 0; --count) {
    history_events_ -= history_.front().events.size();
    history_bytes_ -= BytesOf(history_.front().events);
    history_.pop_front();
  }
  for (const auto& [lease, ttl_s] : change.leases_granted) leases_[lease].ttl_s = ttl_s;
  revision_ = RevisionAfter(change);
  for (const WatchEvent& event : change.events) ApplyEvent(event);
  for (const LeaseId lease : change.leases_ended) leases_.erase(lease);
  if (!change.events.empty()) LoadRevision({revision_, std::move(change.events)});
}

void StoreState::ApplyEvent(const WatchEvent& event) {
  Remove(event.kv.key);
  if (event.kind == WatchEvent::Kind::kPut) LoadKey(event.kv);
}

void StoreState::Remove(const std::string& key) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return;
  const auto lease = leases_.find(found->second.lease);
  if (lease != leases_.end()) lease->second.keys.erase(key);
  stored_bytes_ -= BytesOf(found->second);
  keys_.erase(found);
}

void StoreState::LoadHead(Revision revision, Revision first_watchable) {
  revision_ = revision;
  first_watchable_ = first_watchable;
}

void StoreState::LoadKey(KeyValue kv) {
  if (kv.lease.value != 0) leases_[kv.lease].keys.insert(kv.key);
  stored_bytes_ += BytesOf(kv);
  std::string key = kv.key;
  keys_[std::move(key)] = std::move(kv);
}

void StoreState::LoadLease(LeaseId lease, uint64_t ttl_s) { leases_[lease].ttl_s = ttl_s; }

void StoreState::LoadRevision(StoreRevision revision) {
  UNREFT_CHECK(history_.empty() || history_.back().revision < revision.revision);
  history_events_ += revision.events.size();
  history_bytes_ += BytesOf(revision.events);
  history_.push_back(std::move(revision));
}

}  // namespace unreft::meta
