// StatusBoard: what a client has done and how it goes. Thread-safe; never waits for anything else.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/executor.h"
#include "base/ids.h"

namespace unreft::snapshot {

struct ClientStatus {
  bool connected = false;
  bool ready = false;  // a snapshot would start; not on the board: Capture knows
  Timeline timeline;   // 0 before a decision
  std::optional<Step> last_captured;
  std::optional<Step> last_sealed;
  std::optional<Step> last_committed;  // by every rank
  uint64_t started = 0;
  uint64_t skipped = 0;
  uint64_t given_up = 0;
  uint64_t bytes_captured = 0;
  bool copying = false;  // a snapshot's copies may read the tensors
  Duration last_fence_wait{};
  Duration total_fence_wait{};
  std::string last_problem;  // empty when there was none
  // Why tensors on a device are not looked at by the second net; empty where all are.
  std::string unsampled;
  // Not on the board: ProtectionBoard knows.
  bool protecting = false;
  std::optional<Duration> since_commit;  // none before the first
  std::string why_unprotected;           // empty while it is protecting
};

class StatusBoard {
 public:
  ClientStatus Read() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

  // `change` edits the status and calls nothing else.
  template <typename Change>
  void Edit(Change change) {
    std::lock_guard lock(mutex_);
    change(status_);
  }

  void Problem(std::string problem) {
    Edit([&](ClientStatus& status) { status.last_problem = std::move(problem); });
  }

 private:
  mutable std::mutex mutex_;
  ClientStatus status_;  // guarded by mutex_
};

}  // namespace unreft::snapshot
