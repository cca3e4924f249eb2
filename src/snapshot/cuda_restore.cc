// CudaCopier's part of a restore: by way of pinned buffers to the device.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "snapshot/cuda_copier.h"

namespace unreft::snapshot {

// What the job has queued for its new tensors, such as zeroing them, comes before.
absl::Status CudaCopier::BeginRestore() {
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  return scope.Check(device_->api().cudaDeviceSynchronize(), "waiting before a restore");
}

absl::Status CudaCopier::Restore(std::span<const CopyOp> ops) {
  const size_t room = buffers_->buffer_bytes();
  size_t index = 0;
  uint64_t at = 0;  // in ops[index]
  while (index < ops.size()) {
    std::byte* const buffer = buffers_->Take();
    std::vector<CopyOp> copies;
    std::vector<RestoredPiece> pieces;
    uint64_t used = 0;
    for (; index < ops.size() && used < room;) {
      const CopyOp& op = ops[index];
      const uint64_t here = std::min<uint64_t>(op.bytes - at, room - used);
      std::memcpy(buffer + used, op.source + at, here);
      if (here > 0) {
        copies.push_back({buffer + used, op.target + at, here, true});
        // Of the source, which was verified, not of the buffer.
        if (restore_checksum_) {
          pieces.push_back({op.target + at, here, Crc32c({op.source + at, here})});
        }
      }
      used += here;
      at += here;
      if (at < op.bytes) break;
      ++index;
      at = 0;
    }
    const CudaScope scope(*device_);
    absl::Status status = scope.status();
    if (status.ok()) status = IssueBatch(scope, copies, cudaMemcpyHostToDevice, restore_);
    // Not before its copy has its place in the stream, which is where it will be read.
    if (status.ok() && !pieces.empty()) {
      std::lock_guard lock(mutex_);
      restored_pieces_.insert(restored_pieces_.end(), pieces.begin(), pieces.end());
    }
    restore_flights_->Launch(scope, status, [this, buffer](const absl::Status& landed) {
      {
        std::lock_guard lock(mutex_);
        if (restored_.ok()) restored_ = landed;
        buffers_->Give({&buffer, 1});
      }
      changed_.notify_all();
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CudaCopier::EndRestore() {
  restore_flights_->WaitUntilNone();
  std::vector<RestoredPiece> pieces;
  absl::Status status;
  {
    std::lock_guard lock(mutex_);
    status = std::exchange(restored_, absl::OkStatus());
    pieces.swap(restored_pieces_);
  }
  return status.ok() ? CheckRestored(pieces) : status;
}

}  // namespace unreft::snapshot
