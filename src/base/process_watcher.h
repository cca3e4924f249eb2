// ProcessWatcher: the seam to other processes' lives (pidfd; the fake in memory).
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <cstdint>

#include "base/executor.h"
#include "base/ids.h"
#include "base/peer_identity.h"

namespace unreft {

enum class WatchId : uint64_t { kNone = 0 };

// A process at the other end of a connection.
struct PeerLife {
  ProcessLife life;     // as this process knows it
  int64_t own_pid = 0;  // what it calls itself, in its own pid namespace
};

// Used only in turns of the executor given at construction; callbacks run in such turns.
class ProcessWatcher {
 public:
  virtual ~ProcessWatcher() = default;

  // The life that the pid names now. NotFound when there is none.
  virtual absl::StatusOr<ProcessLife> Identify(int64_t pid) = 0;

  // The life that has made the connection. NotFound when it is over.
  virtual absl::StatusOr<PeerLife> IdentifyPeer(const PeerIdentity& peer) = 0;

  // Calls `on_end` once, never inline, when that life is over: at once if it is over already (the
  // pid is gone, a zombie without memory, or another life's).
  virtual WatchId Watch(ProcessLife life, Task on_end) = 0;

  // `on_end` will not be called once this returns. kNone is ignored.
  virtual void Unwatch(WatchId watch) = 0;

  // The life of the calling process itself.
  virtual ProcessLife Self() = 0;
};

}  // namespace unreft
