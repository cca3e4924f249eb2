#include "meta/engine_kv.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::meta {
namespace {

constexpr uint64_t kForever_s = uint64_t{100} * 366 * 24 * 3600;

absl::Status Named(const absl::Status& status) {
  if (status.ok()) return status;
  return {status.code(),
          fmt::format("meta store of this daemon: {}", std::string(status.message()))};
}

}  // namespace

EngineKv::~EngineKv() {
  for (const auto& [ours, engines] : watches_) engine_.CancelWatch(engines);
}

void EngineKv::Commit(Txn txn, TxnDone done) {
  StoreTxn asked = StoreTxn::Of(txn);
  engine_.Commit(
      asked,
      lifetime_.Bind([asked, done = std::move(done)](absl::StatusOr<StoreReply> reply) mutable {
        if (!reply.ok()) return done(Named(reply.status()));
        done(TxnResultOf(asked, *std::move(reply)));
      }));
}

void EngineKv::GrantLease(Duration, LeaseDone done) {
  engine_.GrantLease({}, kForever_s,
                     lifetime_.Bind([done = std::move(done)](
                                        const absl::StatusOr<StoreEngine::Lease>& lease) mutable {
                       if (!lease.ok()) return done(Named(lease.status()));
                       done(lease->id);
                     }));
}

void EngineKv::KeepAlive(LeaseId lease, Done done) {
  engine_.KeepAlive(
      lease, lifetime_.Bind(
                 [done = std::move(done)](const absl::StatusOr<StoreEngine::Lease>& kept) mutable {
                   done(Named(kept.status()));
                 }));
}

void EngineKv::RevokeLease(LeaseId lease, Done done) {
  engine_.RevokeLease(lease,
                      lifetime_.Bind([done = std::move(done)](const absl::Status& status) mutable {
                        done(Named(status));
                      }));
}

WatchId EngineKv::Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) {
  const WatchId watch{++last_watch_};
  if (start.value == 0) start = {engine_.revision().value + 1};
  absl::StatusOr<WatchId> engines = engine_.Watch(
      KeySpan::Of(range), start, [on_events = std::move(on_events)](StoreWatchEvents news) mutable {
        on_events(std::move(news.events));
      });
  if (engines.ok()) {
    watches_[watch] = *engines;
    return watch;
  }
  watches_[watch] = WatchId::kNone;  // may be cancelled before it hears that
  executor_.Post(lifetime_.Bind(
      [this, watch, status = Named(engines.status()), on_end = std::move(on_end)]() mutable {
        if (watches_.erase(watch) != 0) on_end(std::move(status));
      }));
  return watch;
}

void EngineKv::CancelWatch(WatchId watch) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  engine_.CancelWatch(found->second);
  watches_.erase(found);
}

}  // namespace unreft::meta
