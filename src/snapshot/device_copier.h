// DeviceCopier: the seam to whatever copies tensors' bytes to slots and back (host memory; CUDA).
//
// Copies are asynchronous where the device's are: then the training stream waits for them, never
// the training thread. One client uses one copier.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "snapshot/bound_tensor.h"
#include "snapshot/tensor_probes.h"

namespace unreft::snapshot {

struct CopyOp {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
  bool on_device = false;  // the tensor's end is: the source of a capture, the target of a restore
  // Of a capture: where the CRC32C of the bytes at the source, read where they are, is put before
  // `done`. Null: it is not wanted.
  uint32_t* crc = nullptr;
};

// Of a restore: verified bytes of a room, which go to a tensor on a device.
struct RoomPiece {
  size_t offset = 0;  // in the room
  size_t bytes = 0;
  std::byte* target = nullptr;
  uint32_t crc = 0;  // CRC32C of the bytes where they were verified
};

// Of tensors on a device a look at the places of a step.
struct ProbeOp {
  std::shared_ptr<const TensorProbes> probes;
  MemoryPtr memory;
  Step step;
  std::span<uint64_t> digests;  // one per tensor on a device, written before `done`
};

// Each volatile tensor's place in the staging area of a device begins at a multiple of it.
inline constexpr uint64_t kStagingAlignment = 256;

class DeviceCopier {
 public:
  virtual ~DeviceCopier() = default;

  // --- Registration: in a turn, while nothing is copied ---

  // Whether the tensors can be copied from and to where they are; InvalidArgument names one that
  // cannot, Unavailable says what of their device is missing.
  virtual absl::Status Accept(std::span<const BoundTensor> tensors) = 0;

  // Makes room on the device for so many bytes of volatile tensors. ResourceExhausted.
  virtual absl::Status Reserve(uint64_t volatile_bytes) = 0;

  // Makes room for looks at so many tensors on the device; an error says why there can be none.
  virtual absl::Status ReserveProbes(size_t tensors) = 0;

  // --- The training thread ---

  // The begin of a snapshot of tensors on a device: what is copied from now on comes after what
  // `stream`, and every declared writer, were given before. FailedPrecondition while a graph is
  // captured; no stream is touched then.
  virtual absl::Status Begin(void* stream) = 0;

  // Streams besides that of Begin which write tensors.
  virtual absl::Status SetWriters(std::vector<void*> streams) = 0;

  // After Begin, of state that may change as soon as the caller goes on: host memory is copied at
  // once, that of a device in the order of `stream` into staging. Returns what is left to be copied
  // from there, by CopyBucket, before the snapshot is whole.
  virtual absl::StatusOr<std::vector<CopyOp>> CopyVolatile(std::vector<CopyOp> ops,
                                                           void* stream) = 0;

  // After Begin: looks at tensors on the device before any copy that is handed over later, and
  // before whatever `stream` and the declared writers are given from now on, without blocking the
  // host. `done` as of CopyBucket.
  virtual void ProbeNow(ProbeOp op, void* stream, absl::AnyInvocable<void(absl::Status)> done) = 0;

  // Copies host memory before it returns. May run beside CopyBucket.
  virtual absl::Status CopyNow(std::span<const CopyOp> ops) = 0;

  // Returns when every bucket that was handed over is enqueued on its device, or after `limit`.
  virtual void AwaitEnqueued(Duration /*limit*/) {}

  // Makes `stream` wait for the copies that are enqueued on a device, without blocking the host;
  // those that are not yet will not be, and are answered Aborted. FailedPrecondition as Begin.
  virtual absl::Status Fence(void* stream) = 0;

  // --- Turns of the executor ---

  // Queues the copies behind those queued before; `done` runs exactly once, in a turn of the
  // copier's executor, never inline, when their bytes are all in place or will not come any more.
  // The sources may not be touched after that. `ops` is one bucket, all on a device or none: at
  // most some MiB, so that others interleave.
  virtual void CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) = 0;

  // The same for a look, which comes after all copies that were queued before.
  virtual void ProbeLater(ProbeOp op, absl::AnyInvocable<void(absl::Status)> done) = 0;

  // --- Restore ---

  // Before the first copy into tensors: comes after what their device was given so far.
  virtual absl::Status BeginRestore() = 0;

  // Copies from verified bytes, which may go once it returns, into tensors. On any threads at once.
  virtual absl::Status Restore(std::span<const CopyOp> ops) = 0;

  // Host memory of the copier's, from which Send copies to tensors on a device without copying to
  // its own first. Waits for one. Each goes back by one Send. Empty where there is no device: there
  // bytes are copied straight to their tensors. On any threads at once.
  virtual std::span<std::byte> TakeRoom() = 0;

  // Copies `pieces` of a room to their tensors. The room is the copier's again, also on an error.
  virtual absl::Status Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) = 0;

  // Returns when every copy of Restore and Send is in place; the first error that one of them met.
  virtual absl::Status EndRestore() = 0;

  // --- Any thread ---

  // Copies will go to `memory`, which `owner` keeps mapped: a copier may prepare it as long as what
  // is returned lives, and lets go of `owner` on a thread of its own. A hint.
  virtual std::shared_ptr<void> Pin(std::shared_ptr<const void> owner,
                                    std::span<std::byte> memory) = 0;

  // For people: what copies, and how.
  virtual std::string Describe() const = 0;
};

}  // namespace unreft::snapshot
