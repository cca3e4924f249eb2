// EtcdWatches: the watches of one EtcdKv. Each asks the store which one it is and where, opens a
// stream of its own, and ends with it.
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

class EtcdWatches {
 public:
  using OnProbed = absl::AnyInvocable<void(absl::StatusOr<StoreHead>)>;
  using Probe = absl::AnyInvocable<void(OnProbed)>;
  // Whom to ask; null: nobody now.
  using StubOf = absl::AnyInvocable<etcdserverpb::Watch::Stub*()>;

  // `store` is its name, for messages. `probe` never answers inline.
  EtcdWatches(std::string store, Executor& executor, StubOf stub, CallSet& calls, Probe probe);

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
    Stream stream;  // null before it has met the store
  };

  void OnMet(WatchId id, absl::StatusOr<StoreHead> head);
  void Open(WatchId id, Watcher& watcher);
  // Null when it has ended or was cancelled meanwhile.
  Watcher* Find(WatchId id);
  void OnResponse(WatchId id);
  void Deliver(WatchId id, std::vector<WatchEvent> events);
  void End(WatchId id, absl::Status status);
  // With the store's name before what `status` says.
  void EndNamed(WatchId id, const absl::Status& status);

  const std::string store_;
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
