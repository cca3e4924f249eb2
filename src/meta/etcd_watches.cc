#include "meta/etcd_watches.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/format.h"
#include "meta/etcd_wire.h"
#include "meta/store_types.h"

namespace unreft::meta {

namespace pb = etcdserverpb;

EtcdWatches::EtcdWatches(std::string store, Executor& executor, StubOf stub, CallSet& calls,
                         Probe probe)
    : store_(std::move(store)),
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
                                .on_end = std::move(on_end)});
  probe_([this, id](absl::StatusOr<StoreHead> head) { OnMet(id, std::move(head)); });
  return id;
}

void EtcdWatches::Cancel(WatchId watch) {
  const auto found = watchers_.find(watch);
  if (found == watchers_.end()) return;
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

void EtcdWatches::OnMet(WatchId id, absl::StatusOr<StoreHead> head) {
  Watcher* const watcher = Find(id);
  if (watcher == nullptr) return;
  if (!head.ok()) return End(id, absl::UnavailableError(head.status().message()));
  const absl::Status status = watcher->progress.Meet(head->cluster_id, head->revision);
  if (!status.ok()) return EndNamed(id, status);
  Open(id, *watcher);
}

void EtcdWatches::Open(WatchId id, Watcher& watcher) {
  pb::Watch::Stub* const stub = stub_();
  if (stub == nullptr) return EndNamed(id, absl::UnavailableError("no member is connected"));
  pb::WatchRequest request;
  pb::WatchCreateRequest& create = *request.mutable_create_request();
  KeySpan span = KeySpan::Of(watcher.range);
  create.set_key(std::move(span.begin));
  create.set_range_end(std::move(span.end));
  create.set_start_revision(static_cast<int64_t>(watcher.progress.next().value));
  watcher.stream = std::make_shared<WatchStream>();
  watcher.stream->Start(
      *stub, std::move(request), calls_,
      {.on_response =
           [this, id, alive = alive_] {
             executor_.Post([this, id, alive] {
               if (*alive) OnResponse(id);
             });
           },
       .on_end =
           [this, id, alive = alive_](grpc::Status why) {
             executor_.Post([this, id, alive, why = std::move(why)] {
               if (!*alive || Find(id) == nullptr) return;
               EndNamed(id, absl::UnavailableError(
                                fmt::format("the connection broke: {}", why.error_message())));
             });
           }});
}

EtcdWatches::Watcher* EtcdWatches::Find(WatchId id) {
  const auto found = watchers_.find(id);
  return found == watchers_.end() ? nullptr : &found->second;
}

void EtcdWatches::OnResponse(WatchId id) {
  Watcher* const watcher = Find(id);
  if (watcher == nullptr) return;
  pb::WatchResponse& response = watcher->stream->response();
  if (response.compact_revision() != 0) {
    return EndNamed(id, absl::OutOfRangeError(
                            fmt::format("the changes before revision {} are forgotten, those "
                                        "from {} on were asked for",
                                        response.compact_revision(), watcher->progress.next())));
  }
  if (response.canceled()) {
    return EndNamed(id, absl::UnavailableError(fmt::format("the store ended the watch: {}",
                                                           response.cancel_reason())));
  }
  if (response.events().empty()) return watcher->stream->Read();
  absl::StatusOr<std::vector<WatchEvent>> events =
      FromWire(KeySpan::Of(watcher->range), std::move(response));
  if (!events.ok()) return EndNamed(id, absl::UnavailableError(events.status().message()));
  Deliver(id, *std::move(events));
}

void EtcdWatches::Deliver(WatchId id, std::vector<WatchEvent> events) {
  for (auto& revision : Find(id)->progress.Deliver(std::move(events))) {
    Kv::OnEvents on_events = std::move(Find(id)->on_events);
    on_events(std::move(revision));
    Watcher* const watcher = Find(id);  // it may have cancelled itself
    if (watcher == nullptr) return;
    watcher->on_events = std::move(on_events);
  }
  Find(id)->stream->Read();
}

void EtcdWatches::EndNamed(WatchId id, const absl::Status& status) {
  End(id, {status.code(), fmt::format("{}: {}", store_, status.message())});
}

void EtcdWatches::End(WatchId id, absl::Status status) {
  Watcher watcher = std::move(watchers_.at(id));
  watchers_.erase(id);
  if (watcher.stream != nullptr) watcher.stream->Close();
  watcher.on_end(std::move(status));
}

}  // namespace unreft::meta
