// DeviceCopier: the seam to whatever copies a tensor's bytes into a slot (host memory; CUDA).
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/executor.h"

namespace unreft::snapshot {

struct CopyOp {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
};

// Copies of one snapshot after another; one client uses one copier.
class DeviceCopier {
 public:
  virtual ~DeviceCopier() = default;

  // Copies before it returns: state that may change as soon as the caller goes on (volatile
  // tensors, samples for digests). Called on the training thread.
  virtual absl::Status CopyNow(std::span<const CopyOp> ops, void* stream) = 0;

  // Queues the copies behind those queued before; `done` runs exactly once, in a turn of the
  // copier's executor, never inline, when their bytes are all in place or will not come any more.
  // The sources may not be touched after that. In a turn of the executor. `ops` is one bucket: at
  // most some MiB, so that others interleave.
  virtual void CopyBucket(std::vector<CopyOp> ops, void* stream,
                          absl::AnyInvocable<void(absl::Status)> done) = 0;

  // Copies from a verified slot into tensors, before it returns. On the calling thread, which may
  // be a turn of the executor for staged bytes while another thread copies local ones.
  virtual absl::Status Restore(std::span<const CopyOp> ops) = 0;
};

}  // namespace unreft::snapshot
