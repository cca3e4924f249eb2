#include "snapshot/routing_copier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace unreft::snapshot {
namespace {

// Takes those on a device out of `ops`.
template <typename Ops>
Ops TakeDeviceOps(Ops& ops) {
  const auto first =
      std::stable_partition(ops.begin(), ops.end(), [](const auto& op) { return !op.on_device; });
  Ops taken(first, ops.end());
  ops.erase(first, ops.end());
  return taken;
}

}  // namespace

std::shared_ptr<DeviceCopier> RoutingCopier::device() const {
  std::lock_guard lock(mutex_);
  return device_;
}

absl::Status RoutingCopier::Accept(std::span<const BoundTensor> tensors) {
  std::vector<BoundTensor> on_device;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(on_device),
               [](const BoundTensor& tensor) { return tensor.on_device(); });
  if (on_device.empty()) return absl::OkStatus();
  if (const auto device = this->device()) {
    const absl::Status status = device->Accept(on_device);
    if (!absl::IsFailedPrecondition(status)) return status;
  }
  if (absl::Status status = MakeDevice(on_device[0].cuda_device); !status.ok()) {
    return absl::Status(status.code(),
                        fmt::format("tensor {} on CUDA device {}: {}; only host memory is captured",
                                    on_device[0].spec.name, on_device[0].cuda_device,
                                    std::string(status.message())));
  }
  return device()->Accept(on_device);
}

absl::Status RoutingCopier::MakeDevice(int device) {
  auto made = new_device_copier_(executor_, device);
  if (!made.ok()) return made.status();
  std::shared_ptr<DeviceCopier> before;
  std::lock_guard lock(mutex_);
  before = std::exchange(device_, *std::move(made));
  return device_->SetWriters(writers_);
}

absl::Status RoutingCopier::Reserve(uint64_t volatile_bytes) {
  const auto device = this->device();
  return device ? device->Reserve(volatile_bytes) : host_.Reserve(volatile_bytes);
}

absl::Status RoutingCopier::ReserveProbes(size_t tensors) {
  const auto device = this->device();
  return device ? device->ReserveProbes(tensors) : host_.ReserveProbes(tensors);
}

absl::Status RoutingCopier::Begin(void* stream) {
  const auto device = this->device();
  UNREFT_CHECK(device != nullptr, "a snapshot of a device follows an Accept");
  return device->Begin(stream);
}

absl::Status RoutingCopier::SetWriters(std::vector<void*> streams) {
  std::lock_guard lock(mutex_);
  writers_ = std::move(streams);
  return device_ ? device_->SetWriters(writers_) : absl::OkStatus();
}

absl::StatusOr<std::vector<CopyOp>> RoutingCopier::CopyVolatile(std::vector<CopyOp> ops,
                                                                void* stream) {
  std::vector<CopyOp> on_device = TakeDeviceOps(ops);
  if (absl::Status status = host_.CopyNow(ops); !status.ok()) return status;
  if (on_device.empty()) return on_device;
  return device()->CopyVolatile(std::move(on_device), stream);
}

void RoutingCopier::ProbeNow(ProbeOp op, void* stream,
                             absl::AnyInvocable<void(absl::Status)> done) {
  device()->ProbeNow(std::move(op), stream, std::move(done));
}

absl::Status RoutingCopier::CopyNow(std::span<const CopyOp> ops) { return host_.CopyNow(ops); }

void RoutingCopier::AwaitEnqueued(Duration limit) {
  if (const auto device = this->device()) device->AwaitEnqueued(limit);
}

absl::Status RoutingCopier::Fence(void* stream) {
  const auto device = this->device();
  return device ? device->Fence(stream) : absl::OkStatus();
}

void RoutingCopier::CopyBucket(std::vector<CopyOp> ops,
                               absl::AnyInvocable<void(absl::Status)> done) {
  const bool on_device = !ops.empty() && ops[0].on_device;
  if (!on_device) return host_.CopyBucket(std::move(ops), std::move(done));
  device()->CopyBucket(std::move(ops), std::move(done));
}

void RoutingCopier::ProbeLater(ProbeOp op, absl::AnyInvocable<void(absl::Status)> done) {
  device()->ProbeLater(std::move(op), std::move(done));
}

absl::Status RoutingCopier::BeginRestore() {
  const auto device = this->device();
  return device ? device->BeginRestore() : absl::OkStatus();
}

absl::Status RoutingCopier::Restore(std::span<const CopyOp> ops) {
  std::vector<CopyOp> on_host(ops.begin(), ops.end());
  const std::vector<CopyOp> on_device = TakeDeviceOps(on_host);
  if (absl::Status status = host_.Restore(on_host); !status.ok()) return status;
  return on_device.empty() ? absl::OkStatus() : device()->Restore(on_device);
}

std::span<std::byte> RoutingCopier::TakeRoom() {
  const auto device = this->device();
  return device ? device->TakeRoom() : host_.TakeRoom();
}

absl::Status RoutingCopier::Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) {
  const auto device = this->device();
  return device ? device->Send(room, pieces) : host_.Send(room, pieces);
}

absl::Status RoutingCopier::EndRestore() {
  const auto device = this->device();
  return device ? device->EndRestore() : absl::OkStatus();
}

std::shared_ptr<void> RoutingCopier::Pin(std::shared_ptr<const void> owner,
                                         std::span<std::byte> memory) {
  const auto device = this->device();
  return device ? device->Pin(std::move(owner), memory) : nullptr;
}

std::string RoutingCopier::Describe() const {
  const auto device = this->device();
  return device ? device->Describe() : host_.Describe();
}

}  // namespace unreft::snapshot
