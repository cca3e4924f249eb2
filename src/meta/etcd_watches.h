// EtcdWatches: the watches of one EtcdKv, each mended by itself for as long as it is wanted.
//
//   probe ── meet ── open ── events ... ── the stream ends ── wait, then probe again
//              └ DataLoss        └ OutOfRange
//
// Single-threaded on its executor; gRPC's threads only post.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "meta/etcd_calls.h"
#include "meta/kv.h"
#include "meta/watch_progress.h"

namespace unreft::meta {

struct StoreHead {
  uint64_t cluster_id = 0;
  Revision revision;
};

struct EtcdWatchesOptions {
  std::string name;  // of the store, for messages
  Duration retry_delay_min;
  Duration retry_delay_max;
};

class EtcdWatches {
 public:
  using OnProbed = absl::AnyInvocable<void(absl::StatusOr<StoreHead>)>;
  using Probe = absl::AnyInvocable<void(OnProbed)>;
  // Whom to ask; null: nobody now.
  using StubOf = absl::AnyInvocable<etcdserverpb::Watch::Stub*()>;

  EtcdWatches(EtcdWatchesOptions options, Executor& executor, StubOf stub, CallSet& calls,
              Probe probe);

  WatchId Watch(KeyRange range, uint64_t cluster_id, Revision start, Kv::OnEvents on_events,
                Kv::Done on_end);
  void Cancel(WatchId watch);
  // Ends all streams; nothing is called any more.
  void Stop();

 private:
  using Stream = std::shared_ptr<WatchStream>;
  struct Watcher {
    KeyRange range;
    WatchProgress progress;
    Kv::OnEvents on_events;
    Kv::Done on_end;
    Duration delay;  // before the next attempt
    TimerId retry = TimerId::kNone;
    Stream stream;  // null between streams
  };

  void Meet(WatchId id);
  void OnMet(WatchId id, absl::StatusOr<StoreHead> head);
  void Open(WatchId id, Watcher& watcher);
  // Null when it has been replaced or cancelled meanwhile.
  Watcher* Find(WatchId id, const Stream& stream);
  void OnResponse(WatchId id, const Stream& stream);
  void Deliver(WatchId id, const Stream& stream, std::vector<WatchEvent> events);
  void Retry(WatchId id, Watcher& watcher);
  void End(WatchId id, absl::Status status);

  const EtcdWatchesOptions options_;
  Executor& executor_;
  StubOf stub_;
  CallSet& calls_;
  Probe probe_;
  std::map<WatchId, Watcher> watchers_;
  uint64_t last_watch_ = 0;
  // Atomic only for the tasks that are destroyed with the executor.
  std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace unreft::meta
