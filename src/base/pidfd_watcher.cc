#include "base/pidfd_watcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "base/check.h"
#include "base/proc_stat.h"

namespace unreft {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;

// How soon a process is looked at again whose pidfd could not be had, as when descriptors ran out.
constexpr Duration kRetryPause = std::chrono::milliseconds(100);

// NotFound when the pid names no process, and no thread but a process's first.
absl::StatusOr<UniqueFd> OpenPidfd(int64_t pid) {
  if (pid <= 0 || pid > INT_MAX) return absl::NotFoundError(fmt::format("no process {}", pid));
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));  // cloexec
  if (fd) return fd;
  if (errno == ESRCH || errno == EINVAL || errno == ENOENT) {
    return absl::NotFoundError(fmt::format("no process {}", pid));
  }
  return absl::ErrnoToStatus(errno, fmt::format("open the pidfd of process {}", pid));
}

bool HasEnded(const UniqueFd& pidfd) {
  pollfd ready{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) > 0;
}

ProcessLife LifeOf(const ProcStat& stat) {
  return {.pid = stat.pid, .start_time = stat.start_time};
}

}  // namespace

PidfdWatcher::PidfdWatcher(AsioExecutor& executor)
    : executor_(executor), entries_(std::make_shared<Entries>()) {}

// Moved out first: a task that dies may reach for the table.
PidfdWatcher::~PidfdWatcher() { std::exchange(*entries_, {}).clear(); }

absl::StatusOr<ProcessLife> PidfdWatcher::Identify(int64_t pid) {
  const auto pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) return pidfd.status();
  const auto stat = ReadProcStat(pid);
  // Only now: what has not ended since the pidfd was opened is what /proc told of.
  if (HasEnded(*pidfd)) return absl::NotFoundError(fmt::format("process {} has ended", pid));
  if (!stat.ok()) return stat.status();
  return LifeOf(*stat);
}

// By the connection's own pidfd: the pid may be another process's since it connected.
absl::StatusOr<PeerLife> PidfdWatcher::IdentifyPeer(const PeerIdentity& peer) {
  std::shared_ptr<const UniqueFd> pidfd = peer.pidfd;
  if (pidfd == nullptr) {
    auto opened = OpenPidfd(peer.pid);
    if (!opened.ok()) return opened.status();
    pidfd = std::make_shared<const UniqueFd>(*std::move(opened));
  }
  const auto stat = ReadProcStat(peer.pid);
  const auto own_pid = ReadOwnPid(peer.pid);
  if (HasEnded(*pidfd)) return absl::NotFoundError(fmt::format("process {} has ended", peer.pid));
  if (!stat.ok()) return stat.status();
  if (!own_pid.ok()) return own_pid.status();
  return PeerLife{LifeOf(*stat), *own_pid};
}

WatchId PidfdWatcher::Watch(ProcessLife life, Task on_end) {
  const WatchId watch{++last_watch_};
  entries_->emplace(watch, Entry{.life = life, .on_end = std::move(on_end), .pidfd = {}});
  Begin(watch);
  return watch;
}

void PidfdWatcher::Unwatch(WatchId watch) {
  const auto node = entries_->extract(watch);  // the task dies when the table is whole again
}

ProcessLife PidfdWatcher::Self() {
  const auto stat = ReadProcStatOfSelf();
  UNREFT_CHECK(stat.ok(), "/proc tells of this process: {}", stat.status().ToString());
  return LifeOf(*stat);
}

// Ended, awaited, or looked at again later: an error is never taken for an end.
void PidfdWatcher::Begin(WatchId watch) {
  const ProcessLife life = entries_->at(watch).life;
  auto pidfd = OpenPidfd(life.pid);
  // After the pidfd is open, so that it is of this life if /proc still tells of this life.
  const auto stat = absl::IsNotFound(pidfd.status()) ? pidfd.status() : ReadProcStat(life.pid);
  const std::weak_ptr<Entries> entries = entries_;
  if (stat.ok() ? LifeOf(*stat) != life : absl::IsNotFound(stat.status())) {
    executor_.Post([entries, watch] { Finish(entries, watch); });
  } else if (stat.ok() && pidfd.ok()) {
    Await(watch, std::move(*pidfd));
  } else {
    executor_.After(kRetryPause, [this, entries, watch] {
      const auto alive = entries.lock();
      if (alive && alive->contains(watch)) Begin(watch);
    });
  }
}

void PidfdWatcher::Await(WatchId watch, UniqueFd pidfd) {
  Entry& entry = entries_->at(watch);
  entry.pidfd.emplace(executor_.context(), pidfd.Release());
  entry.pidfd->async_wait(Descriptor::wait_read, [entries = std::weak_ptr(entries_),
                                                  watch](const boost::system::error_code& error) {
    if (!error) Finish(entries, watch);
  });
}

void PidfdWatcher::Finish(const std::weak_ptr<Entries>& entries, WatchId watch) {
  const auto alive = entries.lock();
  if (!alive) return;
  auto node = alive->extract(watch);
  if (node) node.mapped().on_end();
}

}  // namespace unreft
