#include "snapshot/host_copier.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "snapshot/stream_copy.h"

namespace unreft::snapshot {
namespace {

void Copy(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) {
    UNREFT_CHECK(!op.on_device, "host memory is copied by the host");
    StreamCopy(op.target, op.source, op.bytes);
    if (op.crc != nullptr) *op.crc = Crc32c({op.source, op.bytes});
  }
  StreamFence();
}

}  // namespace

absl::Status HostMemoryCopier::Accept(std::span<const BoundTensor> tensors) {
  for (const BoundTensor& tensor : tensors) {
    if (!tensor.on_device()) continue;
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: needed host memory, found CUDA device {}", tensor.spec.name,
                    tensor.cuda_device));
  }
  return absl::OkStatus();
}

absl::Status HostMemoryCopier::Reserve(uint64_t volatile_bytes) {
  UNREFT_CHECK(volatile_bytes == 0, "no tensor is on a device");
  return absl::OkStatus();
}

absl::Status HostMemoryCopier::ReserveProbes(size_t /*tensors*/) {
  return absl::UnavailableError("there is no device");
}

absl::Status HostMemoryCopier::Begin(void* /*stream*/) { return absl::OkStatus(); }

absl::Status HostMemoryCopier::SetWriters(std::vector<void*> /*streams*/) {
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CopyOp>> HostMemoryCopier::CopyVolatile(std::vector<CopyOp> ops,
                                                                   void* /*stream*/) {
  if (absl::Status status = CopyNow(ops); !status.ok()) return status;
  return std::vector<CopyOp>();
}

void HostMemoryCopier::ProbeNow(ProbeOp /*op*/, void* /*stream*/,
                                absl::AnyInvocable<void(absl::Status)> /*done*/) {
  UNREFT_CHECK(false, "no room was made for looks at a device");
}

void HostMemoryCopier::ProbeLater(ProbeOp /*op*/, absl::AnyInvocable<void(absl::Status)> /*done*/) {
  UNREFT_CHECK(false, "no room was made for looks at a device");
}

absl::Status HostMemoryCopier::Fence(void* /*stream*/) { return absl::OkStatus(); }

absl::Status HostMemoryCopier::BeginRestore() { return absl::OkStatus(); }

std::span<std::byte> HostMemoryCopier::TakeRoom() { return {}; }

absl::Status HostMemoryCopier::Send(std::span<std::byte> /*room*/,
                                    std::span<const RoomPiece> /*pieces*/) {
  return absl::InternalError("no room was given");
}

absl::Status HostMemoryCopier::EndRestore() { return absl::OkStatus(); }

std::shared_ptr<void> HostMemoryCopier::Pin(std::shared_ptr<const void> /*owner*/,
                                            std::span<std::byte> /*memory*/) {
  return nullptr;
}

std::string HostMemoryCopier::Describe() const { return "host memory"; }

absl::Status HostCopier::CopyNow(std::span<const CopyOp> ops) {
  Copy(ops);
  return absl::OkStatus();
}

void HostCopier::CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) {
  Copy(ops);
  executor_.Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
}

absl::Status HostCopier::Restore(std::span<const CopyOp> ops) {
  Copy(ops);
  return absl::OkStatus();
}

}  // namespace unreft::snapshot
