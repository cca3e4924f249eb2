#include "tests/fakes/fake_process_watcher.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace unreft {

ProcessLife FakeProcessTable::Start() { return StartAs(++last_pid_); }

ProcessLife FakeProcessTable::StartAs(int64_t pid) {
  const ProcessLife life{.pid = pid, .start_time = ++last_start_time_};
  UNREFT_CHECK(start_time_by_pid_.emplace(pid, life.start_time).second, "pid {} is alive", pid);
  return life;
}

void FakeProcessTable::End(ProcessLife life) {
  if (!alive(life)) return;
  start_time_by_pid_.erase(life.pid);
  for (const auto& [number, watcher] : watchers_) watcher->OnEnd(life);
}

bool FakeProcessTable::alive(ProcessLife life) const {
  const auto found = start_time_by_pid_.find(life.pid);
  return found != start_time_by_pid_.end() && found->second == life.start_time;
}

FakeProcessWatcher::FakeProcessWatcher(FakeProcessTable& table, Executor& executor,
                                       ProcessLife self)
    : table_(table),
      executor_(executor),
      self_(self),
      number_(++table.last_watcher_),
      watches_(std::make_shared<std::map<WatchId, Entry>>()) {
  table_.watchers_.emplace(number_, this);
}

FakeProcessWatcher::~FakeProcessWatcher() { table_.watchers_.erase(number_); }

absl::StatusOr<ProcessLife> FakeProcessWatcher::Identify(int64_t pid) {
  const auto found = table_.start_time_by_pid_.find(pid);
  if (found == table_.start_time_by_pid_.end()) {
    return absl::NotFoundError(fmt::format("no process {}", pid));
  }
  return ProcessLife{.pid = pid, .start_time = found->second};
}

absl::StatusOr<PeerLife> FakeProcessWatcher::IdentifyPeer(const PeerIdentity& peer) {
  const absl::StatusOr<ProcessLife> life = Identify(peer.pid);
  if (!life.ok()) return life.status();
  const auto own = table_.own_pids_.find(peer.pid);
  return PeerLife{*life, own == table_.own_pids_.end() ? peer.pid : own->second};
}

WatchId FakeProcessWatcher::Watch(ProcessLife life, Task on_end) {
  const WatchId watch{++last_watch_};
  watches_->emplace(watch, Entry{life, std::move(on_end)});
  if (!table_.alive(life)) PostEnd(watch);
  return watch;
}

void FakeProcessWatcher::Unwatch(WatchId watch) {
  const auto node = watches_->extract(watch);  // the task dies when the table is whole again
}

void FakeProcessWatcher::OnEnd(ProcessLife life) {
  for (const auto& [watch, entry] : *watches_) {
    if (entry.life == life) PostEnd(watch);
  }
}

void FakeProcessWatcher::PostEnd(WatchId watch) {
  executor_.Post([watches = std::weak_ptr(watches_), watch] {
    const auto alive = watches.lock();
    if (!alive) return;
    auto node = alive->extract(watch);
    if (node) node.mapped().on_end();
  });
}

}  // namespace unreft
