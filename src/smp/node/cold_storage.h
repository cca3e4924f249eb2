// Opens the cold store that a directory's form names: a directory of a file system, or s3://.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "base/executor.h"
#include "durable/cold_store.h"

namespace unreft::smp {

struct ColdStorageOptions {
  // Blocks for so long; false when the process is to end.
  std::function<bool(Duration)> pause;
  std::function<bool()> is_ending;
  bool writes = true;  // false: it may be read-only
};

// InvalidArgument unless CheckColdPlace takes it; else as the store's own Open.
absl::StatusOr<std::unique_ptr<durable::ColdStore>> OpenColdStorage(const std::string& directory,
                                                                    ColdStorageOptions options);

}  // namespace unreft::smp
