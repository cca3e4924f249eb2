#include "snapshot/cuda_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace unreft::snapshot {
namespace {

constexpr char kLibrary[] = "libcudart.so.13";

absl::Status Missing(std::string what) {
  return absl::UnavailableError(fmt::format("no CUDA: {}", what));
}

// Stays loaded: the runtime is the process's, not ours.
absl::StatusOr<void*> OpenLibrary() {
  if (void* loaded = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  if (void* found = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return found;
  return Missing(dlerror());
}

std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

absl::Status CheckDriver(const CudaApi& api) {
  int needed = 0;
  int found = 0;
  api.cudaRuntimeGetVersion(&needed);
  api.cudaDriverGetVersion(&found);
  int devices = 0;
  const cudaError_t error = api.cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return absl::OkStatus();
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    api.cudaGetLastError();
    return Missing("the driver shows no device to this process");
  }
  api.cudaGetLastError();
  if (found == 0) return Missing("no NVIDIA driver");
  if (error == cudaErrorInsufficientDriver) {
    return Missing(fmt::format("the runtime needs a driver of CUDA {}, found one of {}",
                               VersionText(needed), VersionText(found)));
  }
  return Missing(std::string(api.ToStatus(error, "counting devices").message()));
}

template <typename Function>
void BindOfDriver(const CudaApi& api, const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kSince = 12000;
  if (api.cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result) !=
      cudaSuccess) {
    api.cudaGetLastError();
    return;
  }
  if (result == cudaDriverEntryPointSuccess) function = reinterpret_cast<Function>(found);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudaApi>> CudaApi::Load() {
  absl::StatusOr<void*> library = OpenLibrary();
  if (!library.ok()) return library.status();
  auto api = std::make_shared<CudaApi>();
#define UNREFT_CUDA_BIND(name)                                               \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(*library, #name)); \
  if (api->name == nullptr) return Missing(kLibrary + std::string(" has no ") + #name);
  UNREFT_CUDA_FUNCTIONS(UNREFT_CUDA_BIND)
#undef UNREFT_CUDA_BIND
  if (absl::Status status = CheckDriver(*api); !status.ok()) return status;
  BindOfDriver(*api, "cuCtxGetCurrent", api->cuCtxGetCurrent);
  BindOfDriver(*api, "cuCtxGetId", api->cuCtxGetId);
  if (api->cuCtxGetCurrent == nullptr || api->cuCtxGetId == nullptr) {
    return Missing("the driver has no cuCtxGetId");
  }
  return std::shared_ptr<const CudaApi>(std::move(api));
}

absl::Status CudaApi::ToStatus(cudaError_t error, std::string_view doing) const {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = fmt::format("CUDA error {} {} ({})", static_cast<int>(error),
                                       cudaGetErrorName(error), cudaGetErrorString(error));
  if (!IsOfAKernel(error)) return absl::InternalError(fmt::format("{} at {}", text, doing));
  const uint64_t own = own_kernels.count();
  if (own == 0) {
    return absl::InternalError(
        fmt::format("{} of a kernel of the training job, seen at {}", text, doing));
  }
  return absl::InternalError(fmt::format(
      "{} of a kernel, of the training job or one of {} of Unreft's that were under way, "
      "seen at {}",
      text, own, doing));
}

bool IsOfAKernel(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
      return true;
    default:
      return false;
  }
}

}  // namespace unreft::snapshot
