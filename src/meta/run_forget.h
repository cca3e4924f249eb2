// RunForget: the role "forget" of unreftd, which removes a job's records from the meta store.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "meta/etcd_kv.h"

namespace unreft::meta {

// Blocks until it is done; the errors and the result are those of ForgetJob, and those of the
// options. With an executor of its own.
absl::StatusOr<std::vector<std::string>> RunForget(EtcdKvOptions options, const std::string& job,
                                                   bool although_present);

}  // namespace unreft::meta
