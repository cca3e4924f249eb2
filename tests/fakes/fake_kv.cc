#include "tests/fakes/fake_kv.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/check.h"
#include "meta/watch_progress.h"

namespace unreft {

using meta::KeyRange;
using meta::KeySpan;
using meta::LeaseId;
using meta::Revision;
using meta::StoreEngine;
using meta::StoreReply;
using meta::StoreTxn;
using meta::StoreWatchEvents;
using meta::Txn;
using meta::WatchEvent;
using meta::WatchId;
using meta::WatchProgress;

// One node's connection. What travels to the store names its call or link by number and owns
// nothing of the node's; what comes back is dropped when the Kv is gone.
class FakeKvStore::FakeKv final : public meta::Kv {
 public:
  FakeKv(FakeKvStore& store, SimExecutor& node)
      : store_(store), node_(node), number_(++store.last_kv_) {
    store_.kvs_[number_] = this;
  }

  ~FakeKv() override {
    *alive_ = false;
    store_.kvs_.erase(number_);
    for (const auto& [id, watcher] : watchers_) Close(watcher.link);
    if (!node_.InTurn()) return;
    for (const auto& [id, call] : calls_) node_.Cancel(call.deadline);
  }

  const SimExecutor& node() const { return node_; }

  void Commit(Txn txn, TxnDone done) override {
    struct Answer {
      meta::TxnResult result;
      uint64_t cluster_id;
    };
    Ask<Answer>(
        [this, txn = StoreTxn::Of(txn), writes = Writes(txn), alive = alive_](StoreEngine& engine,
                                                                              Reply<Answer> reply) {
          engine.Commit(
              txn, [this, &engine, txn, writes, reply, alive](absl::StatusOr<StoreReply> result) {
                if (!result.ok()) return reply(result.status());
                if (*alive && writes && store_.on_txn_) store_.on_txn_(node_, *result);
                reply(Answer{TxnResultOf(txn, *std::move(result)), engine.cluster_id()});
              });
        },
        [this, done = std::move(done)](absl::StatusOr<Answer> answer) mutable {
          if (!answer.ok()) return done(answer.status());
          cluster_id_ = answer->cluster_id;
          done(std::move(answer->result));
        });
  }

  void GrantLease(Duration ttl, LeaseDone done) override {
    const auto ttl_s = std::chrono::ceil<std::chrono::seconds>(ttl).count();
    Ask<LeaseId>(
        [ttl_s](StoreEngine& engine, Reply<LeaseId> reply) {
          engine.GrantLease({0}, static_cast<uint64_t>(ttl_s), [reply](auto lease) {
            if (!lease.ok()) return reply(lease.status());
            reply(lease->id);
          });
        },
        std::move(done));
  }

  void KeepAlive(LeaseId lease, Done done) override {
    Ask<LeaseId>(
        [lease](StoreEngine& engine, Reply<LeaseId> reply) {
          engine.KeepAlive(lease, [reply](auto kept) {
            if (!kept.ok()) return reply(kept.status());
            reply(kept->id);
          });
        },
        [done = std::move(done)](auto kept) mutable { done(kept.status()); });
  }

  void RevokeLease(LeaseId lease, Done done) override {
    Ask<LeaseId>(
        [lease](StoreEngine& engine, Reply<LeaseId> reply) {
          engine.RevokeLease(lease, [lease, reply](absl::Status status) {
            if (!status.ok()) return reply(std::move(status));
            reply(lease);
          });
        },
        [done = std::move(done)](auto revoked) mutable { done(revoked.status()); });
  }

  WatchId Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) override {
    const WatchId id{++last_watch_};
    const uint64_t cluster_id = start.value == 0 ? 0 : cluster_id_;
    watchers_.emplace(id, Watcher{.range = std::move(range),
                                  .progress = WatchProgress(cluster_id, start),
                                  .on_events = std::move(on_events),
                                  .on_end = std::move(on_end)});
    Meet(id);
    return id;
  }

  void CancelWatch(WatchId id) override {
    const auto found = watchers_.find(id);
    if (found == watchers_.end()) return;
    Close(found->second.link);
    watchers_.erase(found);
  }

  // The connection breaks, and the node learns of it after `delay`.
  void Break(Duration delay) {
    ++connection_;
    // What a link has lost is not followed by what came after it: the silence is noticed later.
    for (const auto& [id, watcher] : watchers_) {
      if (watcher.link != 0) dead_links_.insert(watcher.link);
    }
    node_.Deliver(delay, [this, alive = alive_] {
      if (!*alive) return;
      std::vector<uint64_t> broken;
      for (const auto& [id, call] : calls_) {
        if (call.connection < connection_) broken.push_back(id);
      }
      for (const uint64_t id : broken) Fail(id, Broken());
      BreakWatches([](const Watcher&) { return true; });
    });
  }

 private:
  template <typename T>
  using Reply = std::function<void(absl::StatusOr<T>)>;
  template <typename T>
  using Answered = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  struct Call {
    absl::AnyInvocable<void(absl::Status)> fail;
    TimerId deadline;
    uint64_t connection;
  };
  struct Watcher {
    KeyRange range;
    WatchProgress progress;
    OnEvents on_events;
    Done on_end;
    uint64_t link = 0;  // 0: none yet
  };
  enum class Fate { kArrives, kRequestLost, kAnswerLost };

  static bool Writes(const Txn& txn) {
    return std::ranges::any_of(
        txn.then, [](const meta::Op& op) { return !std::holds_alternative<meta::GetOp>(op); });
  }

  Duration Delay() { return store_.scheduler_.RandomDelay(store_.options_.delay_max); }

  Fate DrawFate() {
    if (store_.options_.lose_one_in == 0 || !store_.random_.OneIn(store_.options_.lose_one_in)) {
      return Fate::kArrives;
    }
    return store_.random_.OneIn(2) ? Fate::kRequestLost : Fate::kAnswerLost;
  }

  // `ask` runs in the store's process; `done` once, whatever happens.
  template <typename T, typename AskFunction>
  void Ask(AskFunction ask, Answered<T> done) {
    UNREFT_CHECK(node_.InTurn());
    const uint64_t id = ++last_call_;
    auto shared = std::make_shared<Answered<T>>(std::move(done));
    const TimerId deadline = node_.After(store_.options_.call_timeout, [this, id] {
      Fail(id, absl::DeadlineExceededError("no answer in time"));
    });
    calls_[id] = {[shared](absl::Status status) { (*shared)(std::move(status)); }, deadline,
                  connection_};
    if (!store_.Reachable(node_)) return;
    if (!store_.running()) return FailSoon(id, "refused");
    const Fate fate = DrawFate();
    if (fate == Fate::kRequestLost) {
      if (store_.random_.OneIn(2)) FailSoon(id, "connection lost");
      return;
    }
    Reply<T> reply = [this, alive = alive_, id, shared, fate,
                      connection = connection_](absl::StatusOr<T> result) {
      if (!*alive || connection != connection_) return;
      if (fate == Fate::kAnswerLost) {
        if (store_.random_.OneIn(2)) FailSoon(id, "connection lost");
        return;
      }
      node_.Deliver(Delay(), [this, alive, id, shared, result = std::move(result)]() mutable {
        if (*alive && Forget(id)) (*shared)(std::move(result));
      });
    };
    store_.process_->Deliver(Delay(), [this, alive = alive_, store = &store_, ask = std::move(ask),
                                       reply, id, connection = connection_] {
      if (!*alive || connection != connection_) return;
      if (!store->started_) return FailSoon(id, "not ready");
      ask(*store->engine_, reply);
    });
  }

  void FailSoon(uint64_t id, std::string why) {
    node_.Deliver(Delay(), [this, alive = alive_, id, why = std::move(why)] {
      if (*alive) Fail(id, absl::UnavailableError(why));
    });
  }

  bool Forget(uint64_t id) {
    const auto found = calls_.find(id);
    if (found == calls_.end()) return false;
    node_.Cancel(found->second.deadline);
    calls_.erase(found);
    return true;
  }

  void Fail(uint64_t id, absl::Status status) {
    const auto found = calls_.find(id);
    if (found == calls_.end()) return;
    auto fail = std::move(found->second.fail);
    Forget(id);
    fail(absl::Status(status.code(),
                      fmt::format("fake meta store: {}", std::string(status.message()))));
  }

  // --- watches ---

  struct Head {
    uint64_t cluster_id;
    Revision revision;
  };

  void Meet(WatchId id) {
    Ask<Head>([](StoreEngine& engine,
                 Reply<Head> reply) { reply(Head{engine.cluster_id(), engine.revision()}); },
              [this, id](absl::StatusOr<Head> head) {
                const auto found = watchers_.find(id);
                if (found == watchers_.end()) return;
                if (!head.ok()) return End(id, Broken());
                absl::Status status = found->second.progress.Meet(head->cluster_id, head->revision);
                if (!status.ok()) return End(id, std::move(status));
                Open(id, found->second);
              });
  }

  void Open(WatchId id, Watcher& watcher) {
    const uint64_t link = ++last_link_;
    watcher.link = link;
    last_arrival_[link] = Duration{0};
    Ask<uint64_t>(
        [this, id, link, store = &store_, alive = alive_, span = KeySpan::Of(watcher.range),
         next = watcher.progress.next()](StoreEngine& engine, Reply<uint64_t> reply) {
          auto watch = engine.Watch(span, next, [this, alive, id, link](StoreWatchEvents events) {
            if (*alive) Travel(id, link, std::move(events));
          });
          if (!watch.ok()) return reply(watch.status());
          store->links_[{number_, link}] = *watch;
          reply(link);
        },
        [this, id, link](absl::StatusOr<uint64_t> opened) {
          const auto found = watchers_.find(id);
          if (opened.ok() || found == watchers_.end() || found->second.link != link) return;
          End(id, absl::IsOutOfRange(opened.status()) ? opened.status() : Broken());
        });
  }

  // From the store to the node, in order; or the link breaks.
  void Travel(WatchId id, uint64_t link, StoreWatchEvents events) {
    const auto last = last_arrival_.find(link);
    if (last == last_arrival_.end()) return;
    if (!store_.Reachable(node_)) dead_links_.insert(link);
    if (dead_links_.contains(link)) return;
    const Duration now = store_.scheduler_.now();
    last->second = std::max(last->second + Duration{10}, now + Delay());
    const bool lost = DrawFate() != Fate::kArrives;
    node_.Deliver(last->second - now,
                  [this, alive = alive_, id, link, lost, connection = connection_,
                   events = std::move(events)]() mutable {
                    if (!*alive || connection != connection_) return;
                    if (lost)
                      return BreakWatches([link](const Watcher& w) { return w.link == link; });
                    Arrive(id, link, std::move(events));
                  });
  }

  void Arrive(WatchId id, uint64_t link, StoreWatchEvents events) {
    auto found = watchers_.find(id);
    if (found == watchers_.end() || found->second.link != link) return;
    for (auto& revision : found->second.progress.Deliver(std::move(events.events))) {
      OnEvents on_events = std::move(found->second.on_events);
      on_events(std::move(revision));
      found = watchers_.find(id);
      if (found == watchers_.end()) return;
      found->second.on_events = std::move(on_events);
    }
  }

  static absl::Status Broken() { return absl::UnavailableError("connection lost"); }

  template <typename Which>
  void BreakWatches(Which which) {
    std::vector<WatchId> broken;
    for (const auto& [id, watcher] : watchers_) {
      if (watcher.link != 0 && which(watcher)) broken.push_back(id);
    }
    for (const WatchId id : broken) {
      if (watchers_.contains(id)) End(id, Broken());
    }
  }

  void Close(uint64_t link) {
    dead_links_.erase(link);
    if (last_arrival_.erase(link) == 0 || !store_.running()) return;
    store_.process_->Deliver(Delay(), [store = &store_, key = std::pair{number_, link}] {
      const auto found = store->links_.find(key);
      if (found == store->links_.end()) return;
      store->engine_->CancelWatch(found->second);
      store->links_.erase(found);
    });
  }

  void End(WatchId id, absl::Status status) {
    Watcher watcher = std::move(watchers_.at(id));
    watchers_.erase(id);
    Close(watcher.link);
    watcher.on_end(absl::Status(status.code(),
                                fmt::format("fake meta store: {}", std::string(status.message()))));
  }

  FakeKvStore& store_;
  SimExecutor& node_;
  const uint64_t number_;
  uint64_t cluster_id_ = 0;  // of the last answer
  uint64_t connection_ = 1;
  std::map<uint64_t, Call> calls_;
  uint64_t last_call_ = 0;
  std::map<WatchId, Watcher> watchers_;
  uint64_t last_watch_ = 0;
  std::map<uint64_t, Duration> last_arrival_;  // of each open link
  std::set<uint64_t> dead_links_;              // of the open ones
  uint64_t last_link_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // tells late messages we are gone
};

FakeKvStore::FakeKvStore(SimScheduler& scheduler, uint64_t seed, FakeKvOptions options)
    : scheduler_(scheduler), options_(options), disk_(seed), random_(seed ^ 0x6d657461) {
  StartProcess();
}

FakeKvStore::~FakeKvStore() {
  UNREFT_CHECK(kvs_.empty(), "Kvs are destroyed before their store");
  Kill();
}

std::unique_ptr<meta::Kv> FakeKvStore::NewKv(SimExecutor& node) {
  return std::make_unique<FakeKv>(*this, node);
}

void FakeKvStore::StartProcess() {
  ++starts_;
  process_ = scheduler_.NewExecutor("meta store");
  auto records = FakeRecordStore::Open(disk_, *process_);
  UNREFT_CHECK(records.ok());
  records_ = *std::move(records);
  MakeEngine();
  process_->Post([this] { StartEngine(); });
}

void FakeKvStore::MakeEngine() {
  engine_ = std::make_unique<StoreEngine>(*process_, *records_, random_, log_, options_.engine);
}

// A new store writes who it is. On a full disk it cannot, and is started again until it can.
void FakeKvStore::StartEngine() {
  engine_->Start([this](absl::Status status) {
    started_ = status.ok();
    if (started_) return;
    process_->After(std::chrono::milliseconds(100), [this] {
      MakeEngine();
      StartEngine();
    });
  });
}

void FakeKvStore::Kill() {
  if (!running()) return;
  process_->Kill();
  engine_.reset();
  records_.reset();
  process_.reset();
  links_.clear();
  started_ = false;
  for (const auto& [number, kv] : kvs_) {
    if (Reachable(kv->node())) kv->Break(scheduler_.RandomDelay(options_.delay_max));
  }
}

void FakeKvStore::Restart() {
  UNREFT_CHECK(!running());
  StartProcess();
}

void FakeKvStore::LoseData() { disk_.Wipe(); }

void FakeKvStore::RollBack(const Copy& copy) { disk_.Replace(copy); }

void FakeKvStore::CutOff(const SimExecutor& node) {
  if (!cut_off_.insert(&node).second) return;
  // Calls under way end at their deadline, watches when the silence is noticed.
  for (const auto& [number, kv] : kvs_) {
    if (&kv->node() == &node) kv->Break(options_.call_timeout);
  }
}

void FakeKvStore::Mend(const SimExecutor& node) { cut_off_.erase(&node); }

}  // namespace unreft
