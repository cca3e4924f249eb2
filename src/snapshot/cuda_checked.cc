// CudaCopier's checksums on the device: of what is copied from it, and of what a restore copied to
// it.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "snapshot/cuda_copier.h"

namespace unreft::snapshot {

absl::Status CudaCopier::OpenChecksums() {
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  const CudaApi& api = device_->api();
  absl::Status status = scope.Check(api.cudaStreamCreateWithFlags(&checks_, cudaStreamNonBlocking),
                                    "making a stream");
  if (status.ok()) {
    status = scope.Check(api.cudaEventCreateWithFlags(&checked_, cudaEventDisableTiming),
                         "making an event");
  }
  if (!status.ok()) return status;
  auto kernel = CudaChecksum::LoadKernel(device_, checks_);
  if (!kernel.ok()) return kernel.status();
  const auto make = [&](size_t chunks, std::unique_ptr<CudaChecksum>& checksum) {
    auto made = CudaChecksum::Create(device_, *kernel, chunks);
    if (made.ok()) checksum = *std::move(made);
    return made.status();
  };
  status = make(options_.checksum_chunks, checksum_);
  if (status.ok()) status = make(options_.restore_checksum_chunks, restore_checksum_);
  return status;
}

// Has what is asked for computed; its results come with the bucket's copies, which wait for it. On
// a stream of its own, so that the next bucket's is computed while this one's copies are under way.
absl::Status CudaCopier::LaunchChecksum(const CudaScope& scope, std::vector<CopyOp> ops,
                                        Route& route, std::optional<CudaChecksum::Pass>& pass) {
  std::erase_if(ops, [](const CopyOp& op) { return op.crc == nullptr; });
  if (ops.empty()) return absl::OkStatus();
  UNREFT_CHECK(checksum_ != nullptr, "CRCs are asked of a copier that was made to compute them");
  absl::StatusOr<CudaChecksum::Pass> launched = checksum_->Launch(scope, std::move(ops), checks_);
  if (!launched.ok()) return launched.status();
  const CudaApi& api = device_->api();
  absl::Status status = scope.Check(api.cudaEventRecord(checked_, checks_), "recording an event");
  if (status.ok()) {
    status = scope.Check(api.cudaStreamWaitEvent(side_, checked_, 0), "ordering the side stream");
  }
  if (!status.ok()) {
    // No fence would cover it.
    scope.Check(api.cudaStreamSynchronize(checks_), "waiting for a checksum").IgnoreError();
    pass = *std::move(launched);
    return status;
  }
  const CopyOp results = checksum_->Results(*launched);
  if (results.bytes > 0) route.copies.push_back(results);
  pass = *std::move(launched);
  return absl::OkStatus();
}

absl::Status CudaCopier::CheckRestored(std::span<const RestoredPiece> pieces) {
  if (pieces.empty()) return absl::OkStatus();
  std::lock_guard checking(restore_checks_);
  std::vector<uint32_t> found(pieces.size());
  std::vector<CopyOp> ops;
  ops.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    ops.push_back({pieces[i].at, nullptr, pieces[i].bytes, true, &found[i]});
  }
  const CudaScope scope(*device_);
  absl::Status status = scope.status();
  if (status.ok()) status = restore_checksum_->ComputeNow(scope, ops, restore_);
  if (!status.ok()) return status;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (found[i] != pieces[i].crc) return WrongOnDevice(pieces[i], found[i]);
  }
  return absl::OkStatus();
}

absl::Status CudaCopier::WrongOnDevice(const RestoredPiece& piece, uint32_t found) const {
  std::string where = fmt::format("{} bytes at {}", piece.bytes, fmt::ptr(piece.at));
  {
    std::lock_guard lock(mutex_);
    for (const BoundTensor& tensor : accepted_) {
      const uint64_t bytes = ShardBytes(tensor.spec);
      if (piece.at < tensor.data || piece.at >= tensor.data + bytes) continue;
      const auto begin = static_cast<uint64_t>(piece.at - tensor.data);
      where =
          fmt::format("tensor {}: bytes {} to {}", tensor.spec.name, begin, begin + piece.bytes);
      break;
    }
  }
  return absl::DataLossError(
      fmt::format("{} have CRC {:08x} on CUDA device {} after they were copied there, needed {:08x}"
                  " (device_checksum)",
                  where, found, device_->index(), piece.crc));
}

}  // namespace unreft::snapshot
