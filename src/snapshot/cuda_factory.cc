#include "snapshot/cuda_factory.h"

#include "snapshot/cuda_copier.h"
#include "snapshot/cuda_image.h"

namespace unreft::snapshot {

absl::StatusOr<std::unique_ptr<DeviceCopier>> NewCudaCopier(Executor& executor, int device,
                                                            bool checksum) {
  return CudaCopier::Create(executor, device, CudaOptions{.checksum = checksum});
}

absl::Status CheckDeviceChecksum() {
  if (!ChecksumImage().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "device_checksum: this build of Unreft was made without nvcc");
}

}  // namespace unreft::snapshot
