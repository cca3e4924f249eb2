// CudaDevice: one device and the life of its context; CudaScope: a thread's calls to it.
//
// Every call to CUDA stands in a CudaScope. It makes the device current and the thread's capture
// mode relaxed, so that a graph that some thread captures is not broken, and puts back what was.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string_view>

#include "snapshot/cuda_api.h"

namespace unreft::snapshot {

// Immutable, so thread-safe.
class CudaDevice {
 public:
  // InvalidArgument when there are not so many.
  static absl::StatusOr<std::shared_ptr<const CudaDevice>> Open(std::shared_ptr<const CudaApi> api,
                                                                int index);

  const CudaApi& api() const { return *api_; }
  int index() const { return index_; }

  // FailedPrecondition when the device was reset since Open: streams, events and memory of before
  // are gone and may not be named any more. In a CudaScope.
  absl::Status CheckAlive() const;

 private:
  CudaDevice(std::shared_ptr<const CudaApi> api, int index) : api_(std::move(api)), index_(index) {}
  // Never used twice in a process; 0 when there is none.
  unsigned long long ContextId() const;

  const std::shared_ptr<const CudaApi> api_;
  const int index_;
  unsigned long long life_ = 0;
};

// Used on the thread that made it.
class CudaScope {
 public:
  explicit CudaScope(const CudaDevice& device);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  // Whether calls may be made: FailedPrecondition after a reset, Internal when an error of the
  // job's waits on this thread to be read. That is left where it is.
  const absl::Status& status() const { return status_; }

  // The status of a call just made; takes its error from the thread again.
  absl::Status Check(cudaError_t error, std::string_view doing) const;

 private:
  const CudaDevice& device_;
  const CudaApi& api_;
  int device_before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  absl::Status status_;
};

}  // namespace unreft::snapshot
