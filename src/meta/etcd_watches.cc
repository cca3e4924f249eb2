#include "meta/etcd_watches.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "meta/etcd_wire.h"
#include "meta/store_types.h"

namespace unreft::meta {

namespace pb = etcdserverpb;

EtcdWatches::EtcdWatches(EtcdWatchesOptions options, Executor& executor, StubOf stub,
                         CallSet& calls, Probe probe)
    : options_(std::move(options)),
      executor_(executor),
      stub_(std::move(stub)),
      calls_(calls),
      probe_(std::move(probe)) {}

WatchId EtcdWatches::Watch(KeyRange range, uint64_t cluster_id, Revision start,
                           Kv::OnEvents on_events, Kv::Done on_end) {
  const WatchId id{++last_watch_};
  watchers_.emplace(id, Watcher{.range = std::move(range),
                                .progress = WatchProgress(cluster_id, start),
                                .on_events = std::move(on_events),
                                .on_end = std::move(on_end),
                                .delay = options_.retry_delay_min});
  Meet(id);
  return id;
}

void EtcdWatches::Cancel(WatchId watch) {
  const auto found = watchers_.find(watch);
  if (found == watchers_.end()) return;
  executor_.Cancel(found->second.retry);
  if (found->second.stream != nullptr) found->second.stream->Close();
  watchers_.erase(found);
}

void EtcdWatches::Stop() {
  *alive_ = false;
  for (auto& [id, watcher] : watchers_) {
    if (watcher.stream != nullptr) watcher.stream->Close();
  }
  watchers_.clear();
}

void EtcdWatches::Meet(WatchId id) {
  probe_([this, id](absl::StatusOr<StoreHead> head) { OnMet(id, std::move(head)); });
}

void EtcdWatches::OnMet(WatchId id, absl::StatusOr<StoreHead> head) {
  const auto found = watchers_.find(id);
  if (found == watchers_.end()) return;
  if (!head.ok()) return Retry(id, found->second);
  absl::Status status = found->second.progress.Meet(head->cluster_id, head->revision);
  if (!status.ok()) return End(id, std::move(status));
  Open(id, found->second);
}

void EtcdWatches::Open(WatchId id, Watcher& watcher) {
  pb::Watch::Stub* const stub = stub_();
  if (stub == nullptr) return Retry(id, watcher);
  pb::WatchRequest request;
  pb::WatchCreateRequest& create = *request.mutable_create_request();
  KeySpan span = KeySpan::Of(watcher.range);
  create.set_key(std::move(span.begin));
  create.set_range_end(std::move(span.end));
  create.set_start_revision(static_cast<int64_t>(watcher.progress.next().value));
  create.set_progress_notify(true);
  auto stream = std::make_shared<WatchStream>();
  watcher.stream = stream;
  // Weak: the stream owns these.
  std::weak_ptr<WatchStream> weak = stream;
  stream->Start(*stub, std::move(request), calls_,
                {.on_response =
                     [this, id, weak, alive = alive_] {
                       executor_.Post([this, id, alive, stream = weak.lock()] {
                         if (*alive) OnResponse(id, stream);
                       });
                     },
                 .on_end =
                     [this, id, weak, alive = alive_](grpc::Status) {
                       executor_.Post([this, id, alive, stream = weak.lock()] {
                         if (!*alive) return;
                         if (Watcher* watcher = Find(id, stream)) Retry(id, *watcher);
                       });
                     }});
}

EtcdWatches::Watcher* EtcdWatches::Find(WatchId id, const Stream& stream) {
  const auto found = watchers_.find(id);
  return found == watchers_.end() || found->second.stream != stream ? nullptr : &found->second;
}

void EtcdWatches::OnResponse(WatchId id, const Stream& stream) {
  Watcher* watcher = Find(id, stream);
  if (watcher == nullptr) return;
  pb::WatchResponse& response = stream->response();
  if (response.compact_revision() != 0) {
    return End(id, absl::OutOfRangeError(
                       fmt::format("the changes before revision {} are forgotten, those from {} on "
                                   "were asked for",
                                   response.compact_revision(), watcher->progress.next())));
  }
  if (response.canceled()) return Retry(id, *watcher);
  watcher->delay = options_.retry_delay_min;
  if (response.events().empty()) {
    if (!response.created()) {
      watcher->progress.Advance({static_cast<uint64_t>(response.header().revision())});
    }
    return stream->Read();
  }
  absl::StatusOr<std::vector<WatchEvent>> events =
      FromWire(KeySpan::Of(watcher->range), std::move(response));
  if (!events.ok()) return Retry(id, *watcher);  // from behind the last one that fitted
  Deliver(id, stream, *std::move(events));
}

void EtcdWatches::Deliver(WatchId id, const Stream& stream, std::vector<WatchEvent> events) {
  for (auto& revision : Find(id, stream)->progress.Deliver(std::move(events))) {
    Kv::OnEvents on_events = std::move(Find(id, stream)->on_events);
    on_events(std::move(revision));
    Watcher* watcher = Find(id, stream);  // it may have cancelled itself
    if (watcher == nullptr) return;
    watcher->on_events = std::move(on_events);
  }
  stream->Read();
}

void EtcdWatches::Retry(WatchId id, Watcher& watcher) {
  if (watcher.stream != nullptr) std::exchange(watcher.stream, nullptr)->Close();
  watcher.retry = executor_.After(watcher.delay, [this, id, alive = alive_] {
    if (*alive && watchers_.contains(id)) Meet(id);
  });
  watcher.delay = std::min(2 * watcher.delay, options_.retry_delay_max);
}

void EtcdWatches::End(WatchId id, absl::Status status) {
  Watcher watcher = std::move(watchers_.at(id));
  watchers_.erase(id);
  if (watcher.stream != nullptr) watcher.stream->Close();
  watcher.on_end(
      absl::Status(status.code(), fmt::format("{}: {}", options_.name, status.message())));
}

}  // namespace unreft::meta
