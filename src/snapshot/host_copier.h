// HostCopier: copies of host memory, on whichever thread asks.
//
// CopyBucket copies within the call, so a bucket takes a part of one turn (about 0.3 ms for 4 MiB),
// and posts `done`. CopyNow and Restore may run beside it on other threads. Thread-safe.
#pragma once

#include "snapshot/device_copier.h"

namespace unreft::snapshot {

class HostCopier : public DeviceCopier {
 public:
  explicit HostCopier(Executor& executor) : executor_(executor) {}

  absl::Status CopyNow(std::span<const CopyOp> ops, void* stream) override;
  void CopyBucket(std::vector<CopyOp> ops, void* stream,
                  absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status Restore(std::span<const CopyOp> ops) override;

 private:
  Executor& executor_;
};

}  // namespace unreft::snapshot
