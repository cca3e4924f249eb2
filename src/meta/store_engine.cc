#include "meta/store_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace unreft::meta {
namespace {

constexpr uint64_t kLeaseTtlMax_s = 9'000'000'000;  // etcd's

// A positive number of etcd's int64 that is not 0.
uint64_t RandomPositive(Random& random) { return (random.Next() >> 1) | 1; }

}  // namespace

StoreEngine::StoreEngine(Executor& executor, RecordStore& records, Random& random, Log& log,
                         StoreEngineOptions options)
    : executor_(executor),
      records_(records),
      random_(random),
      log_(log),
      options_(options),
      state_(options.limits) {}

StoreEngine::~StoreEngine() {
  if (executor_.InTurn()) executor_.Cancel(expiry_timer_);
}

// --- loading ---

void StoreEngine::Start(Done done) {
  records_.Scan("", lifetime_.Bind([this, done = std::move(done)](auto records) mutable {
    OnScanned(std::move(records), std::move(done));
  }));
}

void StoreEngine::OnScanned(absl::StatusOr<std::vector<Record>> records, Done done) {
  if (!records.ok()) return done(records.status());
  absl::StatusOr<uint64_t> cluster_id = LoadRecords(*records, state_);
  if (!cluster_id.ok()) return done(cluster_id.status());
  cluster_id_ = *cluster_id;
  StartLeases();
  if (cluster_id_ != 0) {
    log_.Info("meta store {:x}: revision {}, {} keys, {} leases", cluster_id_, state_.revision(),
              state_.keys().size(), state_.leases().size());
    return done(absl::OkStatus());
  }
  cluster_id_ = RandomPositive(random_);
  log_.Info("meta store {:x}: new", cluster_id_);
  records_.Write({HeadRecord(cluster_id_, state_.revision(), state_.first_watchable())},
                 Durability::kSynced,
                 lifetime_.Bind([done = std::move(done)](absl::Status status) mutable {
                   done(std::move(status));
                 }));
}

void StoreEngine::StartLeases() {
  const Time now = executor_.Now();
  for (const auto& [id, lease] : state_.leases()) {
    expiry_[id] = now + std::chrono::seconds(lease.ttl_s);
  }
  ArmExpiry();
}

// --- calls ---

void StoreEngine::Commit(StoreTxn txn, TxnDone done) {
  struct Running {
    StoreTxn txn;
    StoreReply reply;
  };
  auto running = std::make_shared<Running>(Running{.txn = std::move(txn)});
  Submit(
      [this, running]() -> absl::StatusOr<StoreChange> {
        auto decided = state_.Decide(running->txn);
        if (!decided.ok()) return decided.status();
        running->reply = std::move(decided->first);
        return std::move(decided->second);
      },
      [running, done = std::move(done)](absl::Status status) mutable {
        if (!status.ok()) return done(std::move(status));
        done(std::move(running->reply));
      });
}

void StoreEngine::GrantLease(LeaseId id, uint64_t ttl_s, LeaseDone done) {
  if (ttl_s > kLeaseTtlMax_s) {
    return PostTask([ttl_s, done = std::move(done)]() mutable {
      done(absl::OutOfRangeError(
          fmt::format("a lease of {} s, the limit is {} s", ttl_s, kLeaseTtlMax_s)));
    });
  }
  Lease lease{id, std::max(ttl_s, options_.lease_ttl_s_min)};
  while (lease.id.value == 0 || (id.value == 0 && state_.leases().contains(lease.id))) {
    lease.id = {RandomPositive(random_)};
  }
  Submit([this, lease] { return state_.DecideGrant(lease.id, lease.ttl_s); },
         [lease, done = std::move(done)](absl::Status status) mutable {
           if (!status.ok()) return done(std::move(status));
           done(lease);
         });
}

void StoreEngine::KeepAlive(LeaseId id, LeaseDone done) {
  const auto lease = state_.leases().find(id);
  const bool ending =
      writing_ && std::count(writing_->leases_ended.begin(), writing_->leases_ended.end(), id) > 0;
  absl::StatusOr<Lease> result =
      absl::NotFoundError(fmt::format("lease {:x} is not alive", id.value));
  if (lease != state_.leases().end() && !ending) {
    expiry_[id] = executor_.Now() + std::chrono::seconds(lease->second.ttl_s);
    result = Lease{id, lease->second.ttl_s};
  }
  PostTask([done = std::move(done), result]() mutable { done(std::move(result)); });
}

void StoreEngine::RevokeLease(LeaseId id, Done done) {
  Submit([this, id] { return state_.DecideRevoke(id); }, std::move(done));
}

void StoreEngine::Compact(Revision before, Done done) {
  Submit([this, before] { return state_.DecideForget(before); }, std::move(done));
}

void StoreEngine::Submit(absl::AnyInvocable<absl::StatusOr<StoreChange>()> decide, Done done) {
  UNREFT_CHECK(cluster_id_ != 0, "calls begin after Start");
  if (calls_.size() >= options_.calls_max) {
    return PostTask([this, done = std::move(done)]() mutable {
      done(absl::UnavailableError(fmt::format("{} calls wait for the disk, the limit is {}",
                                              calls_.size(), options_.calls_max)));
    });
  }
  calls_.push_back({std::move(decide), std::move(done)});
  Wake();
}

void StoreEngine::PostTask(Task task) {
  executor_.Post(lifetime_.Bind([task = std::move(task)]() mutable { task(); }));
}

void StoreEngine::Wake() {
  if (std::exchange(awake_, true)) return;
  PostTask([this] {
    awake_ = false;
    RunCalls();
  });
}

void StoreEngine::RunCalls() {
  while (!writing_ && !calls_.empty()) {
    Call call = std::move(calls_.front());
    calls_.pop_front();
    absl::StatusOr<StoreChange> change = call.decide();
    if (!change.ok() || change->empty()) {
      call.done(change.status());
    } else if (unsettled_) {
      call.done(absl::UnavailableError("the disk refuses to be written"));
    } else {
      Write(*std::move(change), std::move(call.done));
    }
  }
}

void StoreEngine::Write(StoreChange change, Done done) {
  StoreBatches batches = BatchesOf(state_, cluster_id_, change);
  writing_ = std::move(change);
  writing_done_ = std::move(done);
  backward_ = std::move(batches.backward);
  records_.Write(std::move(batches.forward), Durability::kSynced,
                 lifetime_.Bind([this](absl::Status status) { OnWritten(std::move(status)); }));
}

void StoreEngine::OnWritten(absl::Status status) {
  StoreChange change = *std::exchange(writing_, std::nullopt);
  Done done = std::move(writing_done_);
  if (status.ok()) {
    const Time now = executor_.Now();
    for (const auto& [lease, ttl_s] : change.leases_granted) {
      expiry_[lease] = now + std::chrono::seconds(ttl_s);
    }
    for (const LeaseId lease : change.leases_ended) expiry_.erase(lease);
    state_.Apply(std::move(change));
    done(absl::OkStatus());
    TellWatches();
    ArmExpiry();
  } else {
    log_.WarnEvery("write", std::chrono::seconds(10), executor_.Now(), "meta store: {}",
                   status.message());
    unsettled_ = true;
    done(absl::UnavailableError(status.message()));
    TakeBack();
  }
  RunCalls();
}

// The failed batch may be on disk. Writing it back is repeated until it succeeds; then disk and
// memory are the same again.
void StoreEngine::TakeBack() {
  records_.Write(backward_, Durability::kSynced, lifetime_.Bind([this](absl::Status status) {
    if (status.ok()) {
      unsettled_ = false;
      ArmExpiry();
      return;
    }
    executor_.After(options_.settle_retry, lifetime_.Bind([this] { TakeBack(); }));
  }));
}

// --- watches ---

absl::StatusOr<WatchId> StoreEngine::Watch(KeySpan span, Revision start, OnEvents on_events) {
  UNREFT_CHECK(start.value != 0);
  if (start < state_.first_watchable()) {
    return absl::OutOfRangeError(
        fmt::format("changes from revision {} on are asked for, those before {} are forgotten",
                    start, state_.first_watchable()));
  }
  if (watches_.size() >= options_.watches_max) {
    return absl::ResourceExhaustedError(
        fmt::format("{} watches, the limit is {}", watches_.size(), options_.watches_max));
  }
  const WatchId id{++last_watch_};
  watches_[id] = {std::move(span), start, std::move(on_events)};
  PostTask([this, id] { TellWatch(id); });
  return id;
}

void StoreEngine::CancelWatch(WatchId watch) { watches_.erase(watch); }

void StoreEngine::TellWatches() {
  std::vector<WatchId> ids;
  for (const auto& [id, watcher] : watches_) ids.push_back(id);
  for (const WatchId id : ids) TellWatch(id);
}

// What of the history the watch has not been told. It may cancel itself, or others, meanwhile.
void StoreEngine::TellWatch(WatchId id) {
  while (true) {
    const auto found = watches_.find(id);
    if (found == watches_.end()) return;
    Watcher& watcher = found->second;
    const auto& history = state_.history();
    auto it = std::lower_bound(
        history.begin(), history.end(), watcher.next,
        [](const StoreRevision& revision, Revision next) { return revision.revision < next; });
    StoreWatchEvents news;
    for (; it != history.end() && news.events.empty(); ++it) {
      for (const WatchEvent& event : it->events) {
        if (watcher.span.Contains(event.kv.key)) news.events.push_back(event);
      }
      news.revision = it->revision;
    }
    if (news.revision.value != 0) watcher.next = {news.revision.value + 1};
    if (news.events.empty()) return;
    OnEvents on_events = std::move(watcher.on_events);
    on_events(std::move(news));
    if (const auto again = watches_.find(id); again != watches_.end()) {
      again->second.on_events = std::move(on_events);
    }
  }
}

// --- leases ---

void StoreEngine::ArmExpiry() {
  executor_.Cancel(expiry_timer_);
  expiry_timer_ = TimerId::kNone;
  if (expiry_.empty()) return;
  Time first = Time::max();
  for (const auto& [lease, time] : expiry_) first = std::min(first, time);
  expiry_timer_ = executor_.After(first - executor_.Now(), lifetime_.Bind([this] { Expire(); }));
}

void StoreEngine::Expire() {
  expiry_timer_ = TimerId::kNone;
  const Time now = executor_.Now();
  Time first = Time::max();
  for (const auto& [lease, time] : expiry_) {
    if (time > now) {
      first = std::min(first, time);
      continue;
    }
    first = std::min(first, now + std::chrono::seconds(1));  // it is still there if that fails
    Submit(
        [this, lease = lease]() -> absl::StatusOr<StoreChange> {
          const auto found = expiry_.find(lease);  // kept alive meanwhile?
          if (found == expiry_.end() || found->second > executor_.Now()) return StoreChange{};
          return state_.DecideRevoke(lease);
        },
        [](absl::Status) {});
  }
  if (expiry_.empty()) return;
  expiry_timer_ = executor_.After(first - now, lifetime_.Bind([this] { Expire(); }));
}

}  // namespace unreft::meta
