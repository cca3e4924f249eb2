// SettingsCheck: whether a daemon that starts is started like its job, before it touches memory.
//
// What the meta store said is also kept in the record store, beside the memory that was made by it:
// so that a daemon which does not reach the store does not touch the memory by other settings
// either.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "base/record_store.h"
#include "smp/desk/node_state.h"
#include "smp/job/job_settings.h"

namespace unreft::smp {

// Before a daemon touches the memory of the one before: asks the store, if the job has one, and
// compares with what lies beside the memory. ok as well if neither can be asked now.
class SettingsCheck {
 public:
  SettingsCheck(NodeSeams& seams, const NodeOptions& options);

  // Once; `done` in a turn of its own.
  void Start(absl::AnyInvocable<void(absl::Status)> done);

 private:
  KeptMemory LookAtMemory(const absl::StatusOr<std::vector<Record>>& records);
  void EndByMemory();
  void Keep();
  void End(absl::Status status);

  NodeSeams& seams_;
  const NodeOptions& options_;
  std::unique_ptr<JobSettings> job_;  // null where the store is this process's
  bool makes_memory_ = false;         // there is none yet: what will be is made by ours
  absl::Status by_memory_;            // not ok: what lies here was made by others
  absl::AnyInvocable<void(absl::Status)> done_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
