// FakeProcessTable and FakeProcessWatcher: the lives of simulated processes.
//
// One table is shared by every process of a machine; each process watches it through a watcher of
// its own. A process that ended is forgotten at once: a zombie that still has memory is alive.
// Single-threaded.
#pragma once

#include <map>
#include <memory>

#include "base/process_watcher.h"

namespace unreft {

class FakeProcessWatcher;

// Outlives its watchers.
class FakeProcessTable {
 public:
  // Of a host that has been up for so long: of two, no processes begin at one time.
  explicit FakeProcessTable(uint64_t up = 0) : last_start_time_(up) {}

  // A new process, with a pid no other had.
  ProcessLife Start();
  // A new process with the pid of one that ended.
  ProcessLife StartAs(int64_t pid);
  // It calls itself so, in a pid namespace of its own.
  void SetOwnPid(int64_t pid, int64_t own_pid) { own_pids_[pid] = own_pid; }
  // The end of that life; of one that is over already, nothing.
  void End(ProcessLife life);

  bool alive(ProcessLife life) const;

 private:
  friend class FakeProcessWatcher;

  std::map<int64_t, uint64_t> start_time_by_pid_;
  std::map<int64_t, int64_t> own_pids_;  // where they are others
  int64_t last_pid_ = 1000;
  uint64_t last_start_time_;
  std::map<uint64_t, FakeProcessWatcher*> watchers_;
  uint64_t last_watcher_ = 0;
};

class FakeProcessWatcher final : public ProcessWatcher {
 public:
  // `self` is the process that this watcher is in.
  FakeProcessWatcher(FakeProcessTable& table, Executor& executor, ProcessLife self);
  ~FakeProcessWatcher() override;
  FakeProcessWatcher(const FakeProcessWatcher&) = delete;
  FakeProcessWatcher& operator=(const FakeProcessWatcher&) = delete;

  absl::StatusOr<ProcessLife> Identify(int64_t pid) override;
  absl::StatusOr<PeerLife> IdentifyPeer(const PeerIdentity& peer) override;
  WatchId Watch(ProcessLife life, Task on_end) override;
  void Unwatch(WatchId watch) override;
  ProcessLife Self() override { return self_; }

 private:
  friend class FakeProcessTable;
  struct Entry {
    ProcessLife life;
    Task on_end;
  };

  void OnEnd(ProcessLife life);
  void PostEnd(WatchId watch);

  FakeProcessTable& table_;
  Executor& executor_;
  const ProcessLife self_;
  uint64_t number_;
  // Shared with posted turns, which outlive an Unwatch and the watcher.
  std::shared_ptr<std::map<WatchId, Entry>> watches_;
  uint64_t last_watch_ = 0;
};

}  // namespace unreft
