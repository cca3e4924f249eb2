// NewCudaCopier: the copier of a CUDA device, or why this build or machine has none.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>

#include "snapshot/device_copier.h"

namespace unreft::snapshot {

// Unavailable says what is missing: CUDA in this build, the runtime, a driver that is new enough, a
// device. `checksum` is CudaOptions::checksum.
absl::StatusOr<std::unique_ptr<DeviceCopier>> NewCudaCopier(Executor& executor, int device,
                                                            bool checksum);

// FailedPrecondition where this build has no kernel for checksums.
absl::Status CheckDeviceChecksum();

}  // namespace unreft::snapshot
