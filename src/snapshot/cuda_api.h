// CudaApi: the CUDA runtime that the training process uses, bound by name.
//
// libunreft.so links no CUDA: it loads where there is none. The functions are looked up when the
// first tensor on a device comes, in the libcudart that the process has loaded already, and only
// then in one of the system's (design note "One CUDA runtime"). Immutable but for what counts our
// kernels, so thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>

#include "snapshot/own_kernels.h"

namespace unreft::snapshot {

// All that is used of it.
#define UNREFT_CUDA_FUNCTIONS(X)      \
  X(cudaDeviceSynchronize)            \
  X(cudaDriverGetVersion)             \
  X(cudaEventCreateWithFlags)         \
  X(cudaEventDestroy)                 \
  X(cudaEventRecord)                  \
  X(cudaEventSynchronize)             \
  X(cudaFree)                         \
  X(cudaFreeHost)                     \
  X(cudaGetDevice)                    \
  X(cudaGetDeviceCount)               \
  X(cudaGetDriverEntryPointByVersion) \
  X(cudaGetErrorName)                 \
  X(cudaGetErrorString)               \
  X(cudaGetLastError)                 \
  X(cudaHostAlloc)                    \
  X(cudaHostRegister)                 \
  X(cudaHostUnregister)               \
  X(cudaLaunchKernelExC)              \
  X(cudaLibraryGetKernel)             \
  X(cudaLibraryLoadData)              \
  X(cudaLibraryUnload)                \
  X(cudaMalloc)                       \
  X(cudaMemcpyAsync)                  \
  X(cudaMemcpyBatchAsync)             \
  X(cudaPeekAtLastError)              \
  X(cudaPointerGetAttributes)         \
  X(cudaRuntimeGetVersion)            \
  X(cudaSetDevice)                    \
  X(cudaStreamCreateWithFlags)        \
  X(cudaStreamDestroy)                \
  X(cudaStreamIsCapturing)            \
  X(cudaStreamSynchronize)            \
  X(cudaStreamWaitEvent)              \
  X(cudaThreadExchangeStreamCaptureMode)

struct CudaApi {
#define UNREFT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  UNREFT_CUDA_FUNCTIONS(UNREFT_CUDA_MEMBER)
#undef UNREFT_CUDA_MEMBER

  // Of the driver, for the identity of a context.
  decltype(&::cuCtxGetCurrent) cuCtxGetCurrent = nullptr;
  decltype(&::cuCtxGetId) cuCtxGetId = nullptr;

  // Unavailable, saying what is missing: the library, a function of it, a driver that is new
  // enough, a device.
  static absl::StatusOr<std::shared_ptr<const CudaApi>> Load();

  mutable OwnKernels own_kernels;

  // OK for cudaSuccess. Otherwise Internal with the error's number, name and text, and `doing`; an
  // error that only kernels raise is called one of the training job's, unless own_kernels.
  absl::Status ToStatus(cudaError_t error, std::string_view doing) const;
};

// Whether the error stays until the process ends or the device is reset: some kernel went wrong. It
// was one of the job's as long as none of Unreft's own is under way.
bool IsOfAKernel(cudaError_t error);

}  // namespace unreft::snapshot
