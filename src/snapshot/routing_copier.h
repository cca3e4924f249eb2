// RoutingCopier: a HostCopier, and a copier of the device on which tensors turn out to be.
//
// That one is made when the first such tensor is registered or restored: a process without any
// never touches a device. It is made anew when it no longer accepts them, as after a reset.
// Thread-safe as DeviceCopier says.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "snapshot/host_copier.h"

namespace unreft::snapshot {

class RoutingCopier final : public DeviceCopier {
 public:
  using NewDeviceCopier =
      std::function<absl::StatusOr<std::unique_ptr<DeviceCopier>>(Executor&, int device)>;

  RoutingCopier(Executor& executor, NewDeviceCopier new_device_copier)
      : executor_(executor), host_(executor), new_device_copier_(std::move(new_device_copier)) {}

  absl::Status Accept(std::span<const BoundTensor> tensors) override;
  absl::Status Reserve(uint64_t volatile_bytes) override;
  absl::Status ReserveProbes(size_t tensors) override;
  absl::Status Begin(void* stream) override;
  absl::Status SetWriters(std::vector<void*> streams) override;
  absl::StatusOr<std::vector<CopyOp>> CopyVolatile(std::vector<CopyOp> ops, void* stream) override;
  void ProbeNow(ProbeOp op, void* stream, absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status CopyNow(std::span<const CopyOp> ops) override;
  void AwaitEnqueued(Duration limit) override;
  absl::Status Fence(void* stream) override;
  void CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) override;
  void ProbeLater(ProbeOp op, absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status BeginRestore() override;
  absl::Status Restore(std::span<const CopyOp> ops) override;
  std::span<std::byte> TakeRoom() override;
  absl::Status Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) override;
  absl::Status EndRestore() override;
  std::shared_ptr<void> Pin(std::shared_ptr<const void> owner,
                            std::span<std::byte> memory) override;
  std::string Describe() const override;

 private:
  absl::Status MakeDevice(int device);
  // Null when no tensor was on one yet.
  std::shared_ptr<DeviceCopier> device() const;

  Executor& executor_;
  HostCopier host_;
  const NewDeviceCopier new_device_copier_;

  mutable std::mutex mutex_;              // covers all below
  std::shared_ptr<DeviceCopier> device_;  // shared with the calls that are under way
  std::vector<void*> writers_;
};

}  // namespace unreft::snapshot
