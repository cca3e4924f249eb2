// ForgetJob: removes what a job that has ended has in the meta store (docs/formats/meta_keys.md).
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "meta/kv.h"

namespace unreft::meta {

// `done` is told the keys that were removed, without "unreft/JOB/"; none, if the store had none.
// FailedPrecondition, naming them, while daemons of the job are present, unless
// `although_present`; Aborted when the records change meanwhile, and nothing is removed then;
// Unavailable, DeadlineExceeded: the outcome is unknown.
// In a turn of the executor of `kv`, which outlives the call.
void ForgetJob(Kv& kv, const std::string& job, bool although_present,
               absl::AnyInvocable<void(absl::StatusOr<std::vector<std::string>>)> done);

}  // namespace unreft::meta
