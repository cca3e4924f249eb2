#include "snapshot/cuda_device.h"

#include <fmt/format.h>

namespace unreft::snapshot {

absl::StatusOr<std::shared_ptr<const CudaDevice>> CudaDevice::Open(
    std::shared_ptr<const CudaApi> api, int index) {
  int count = 0;
  const cudaError_t error = api->cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    api->cudaGetLastError();
    return api->ToStatus(error, "counting devices");
  }
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        fmt::format("CUDA device {}: this process sees {} devices", index, count));
  }
  std::shared_ptr<CudaDevice> device(new CudaDevice(std::move(api), index));
  const CudaScope scope(*device);
  device->life_ = device->ContextId();
  if (device->life_ != 0) return device;
  return absl::InternalError(fmt::format("CUDA device {}: its context has no id", index));
}

unsigned long long CudaDevice::ContextId() const {
  const auto id_of_current = [this]() -> unsigned long long {
    CUcontext context = nullptr;
    unsigned long long id = 0;
    if (api_->cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return 0;
    return api_->cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
  };
  if (const unsigned long long id = id_of_current()) return id;
  // A thread that has made no call yet, or whose context is gone.
  if (api_->cudaSetDevice(index_) != cudaSuccess) api_->cudaGetLastError();
  return id_of_current();
}

absl::Status CudaDevice::CheckAlive() const {
  if (life_ == 0 || ContextId() == life_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("CUDA device {} was reset: its tensors are gone, register the new ones", index_));
}

CudaScope::CudaScope(const CudaDevice& device) : device_(device), api_(device.api()) {
  api_.cudaThreadExchangeStreamCaptureMode(&mode_);
  const cudaError_t error = api_.cudaPeekAtLastError();
  if (error != cudaSuccess && error != cudaErrorNotReady) {
    status_ = api_.ToStatus(error, "a call of the training job, which has not read it yet");
    device_before_ = -1;
    return;
  }
  api_.cudaGetDevice(&device_before_);
  if (device_before_ != device_.index()) {
    status_ = Check(api_.cudaSetDevice(device_.index()), "choosing the device");
  }
  if (status_.ok()) status_ = device_.CheckAlive();
}

CudaScope::~CudaScope() {
  if (device_before_ != -1 && device_before_ != device_.index()) {
    Check(api_.cudaSetDevice(device_before_), "choosing the device").IgnoreError();
  }
  api_.cudaThreadExchangeStreamCaptureMode(&mode_);
}

absl::Status CudaScope::Check(cudaError_t error, std::string_view doing) const {
  if (error == cudaSuccess) return absl::OkStatus();
  api_.cudaGetLastError();
  return api_.ToStatus(error, doing);
}

}  // namespace unreft::snapshot
