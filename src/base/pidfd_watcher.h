// PidfdWatcher: watches processes by pidfd, so that no reused pid is ever taken for the life that
// had it before. Needs Linux 5.3 or later.
//
// A process has ended when its last thread is gone, and with it its mappings: a zombie whose other
// threads still run has not, whatever /proc calls it. Single-threaded on its executor.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <map>
#include <memory>
#include <optional>

#include "base/asio_executor.h"
#include "base/process_watcher.h"
#include "base/unique_fd.h"

namespace unreft {

class PidfdWatcher final : public ProcessWatcher {
 public:
  explicit PidfdWatcher(AsioExecutor& executor);
  ~PidfdWatcher() override;
  PidfdWatcher(const PidfdWatcher&) = delete;
  PidfdWatcher& operator=(const PidfdWatcher&) = delete;

  absl::StatusOr<ProcessLife> Identify(int64_t pid) override;
  absl::StatusOr<PeerLife> IdentifyPeer(const PeerIdentity& peer) override;
  WatchId Watch(ProcessLife life, Task on_end) override;
  void Unwatch(WatchId watch) override;
  ProcessLife Self() override;

 private:
  struct Entry {
    ProcessLife life;
    Task on_end;
    std::optional<boost::asio::posix::stream_descriptor> pidfd;
  };
  // Shared with handlers under way, which outlive an Unwatch and the watcher.
  using Entries = std::map<WatchId, Entry>;

  static void Finish(const std::weak_ptr<Entries>& entries, WatchId watch);

  void Begin(WatchId watch);
  void Await(WatchId watch, UniqueFd pidfd);

  AsioExecutor& executor_;
  const std::shared_ptr<Entries> entries_;
  uint64_t last_watch_ = 0;
};

}  // namespace unreft
