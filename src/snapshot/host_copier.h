// HostCopier: copies of host memory, on whichever thread asks.
//
// CopyBucket copies within the call, so a bucket takes a part of one turn (about 0.3 ms for 4 MiB),
// and posts `done`. CopyNow and Restore may run beside it on other threads. Thread-safe.
#pragma once

#include "snapshot/device_copier.h"

namespace unreft::snapshot {

// What of the seam has nothing to do where all memory is the host's.
class HostMemoryCopier : public DeviceCopier {
 public:
  absl::Status Accept(std::span<const BoundTensor> tensors) override;
  absl::Status Reserve(uint64_t volatile_bytes) override;
  absl::Status ReserveProbes(size_t tensors) override;
  absl::Status Begin(void* stream) override;
  absl::Status SetWriters(std::vector<void*> streams) override;
  absl::StatusOr<std::vector<CopyOp>> CopyVolatile(std::vector<CopyOp> ops, void* stream) override;
  void ProbeNow(ProbeOp op, void* stream, absl::AnyInvocable<void(absl::Status)> done) override;
  void ProbeLater(ProbeOp op, absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status Fence(void* stream) override;
  absl::Status BeginRestore() override;
  std::span<std::byte> TakeRoom() override;
  absl::Status Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) override;
  absl::Status EndRestore() override;
  std::shared_ptr<void> Pin(std::shared_ptr<const void> owner,
                            std::span<std::byte> memory) override;
  std::string Describe() const override;
};

class HostCopier final : public HostMemoryCopier {
 public:
  explicit HostCopier(Executor& executor) : executor_(executor) {}

  absl::Status CopyNow(std::span<const CopyOp> ops) override;
  void CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status Restore(std::span<const CopyOp> ops) override;

 private:
  Executor& executor_;
};

}  // namespace unreft::snapshot
