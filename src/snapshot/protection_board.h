// ProtectionBoard: whether what this rank trains is safe, and if not, why, for its status. Thread-
// safe: the training thread tells of snapshots, the executor's turns of what became of them.
#pragma once

#include <absl/status/status.h>

#include <mutex>
#include <string>

#include "base/protection_account.h"
#include "snapshot/status_board.h"

namespace unreft::snapshot {

class ProtectionBoard {
 public:
  void Begin(std::optional<Step> restored, Time now);
  // What a call of snapshot came to: `outcome` is not ok, or `skipped` says why, if nothing was
  // started.
  void Snapshot(Step step, const absl::Status& outcome, const std::string& skipped, Time now);
  void GaveUp(Step step, const std::string& why);
  void Committed(Step step, Time now);

  void Connected();
  void Lost(const std::string& why);
  // For good.
  void Refused(const std::string& why);
  // What the daemon says; empty = nothing any more.
  void Obstacle(std::string what);

  void Fill(ClientStatus& status, Time now) const;
  // What it was told last of the three above; empty = nothing stands in the way, as far as is
  // known.
  std::string Told() const;

 private:
  mutable std::mutex mutex_;
  // All below is guarded by mutex_.
  ProtectionAccount account_;
  std::string refused_;
  std::string lost_;
  std::string obstacle_;
};

}  // namespace unreft::snapshot
