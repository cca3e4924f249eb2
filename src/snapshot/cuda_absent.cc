// In place of cuda_factory.cc where no CUDA toolkit was when the library was built.

#include "snapshot/cuda_factory.h"

namespace unreft::snapshot {

absl::StatusOr<std::unique_ptr<DeviceCopier>> NewCudaCopier(Executor& /*executor*/, int /*device*/,
                                                            bool /*checksum*/) {
  return absl::UnavailableError("no CUDA: this build of Unreft was made without the CUDA toolkit");
}

absl::Status CheckDeviceChecksum() {
  return absl::FailedPreconditionError(
      "device_checksum: this build of Unreft was made without the CUDA toolkit");
}

}  // namespace unreft::snapshot
