#include "snapshot/cuda_factory.h"

#include "snapshot/cuda_copier.h"

namespace unreft::snapshot {

absl::StatusOr<std::unique_ptr<DeviceCopier>> NewCudaCopier(Executor& executor, int device) {
  return CudaCopier::Create(executor, device, CudaOptions{});
}

}  // namespace unreft::snapshot
