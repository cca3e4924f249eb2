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
  size_t index = 0;
  uint64_t at = 0;  // in ops[index]
  while (index < ops.size()) {
    const std::span<std::byte> room = TakeRoom();
    std::vector<RoomPiece> pieces;
    uint64_t used = 0;
    for (; index < ops.size() && used < room.size();) {
      const CopyOp& op = ops[index];
      const uint64_t here = std::min<uint64_t>(op.bytes - at, room.size() - used);
      std::memcpy(room.data() + used, op.source + at, here);
      if (here > 0) {
        // Of the source, which was verified, not of the room.
        const uint32_t crc = restore_checksum_ ? Crc32c({op.source + at, here}) : 0;
        pieces.push_back({used, here, op.target + at, crc});
      }
      used += here;
      at += here;
      if (at < op.bytes) break;
      ++index;
      at = 0;
    }
    if (absl::Status status = Send(room, pieces); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::span<std::byte> CudaCopier::TakeRoom() { return {buffers_->Take(), buffers_->buffer_bytes()}; }

absl::Status CudaCopier::Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) {
  std::vector<CopyOp> copies;
  copies.reserve(pieces.size());
  for (const RoomPiece& piece : pieces) {
    copies.push_back({room.data() + piece.offset, piece.target, piece.bytes, true});
  }
  const CudaScope scope(*device_);
  absl::Status status = scope.status();
  if (status.ok()) status = IssueBatch(scope, copies, cudaMemcpyHostToDevice, restore_);
  // Not before its copy has its place in the stream, which is where it will be read.
  if (status.ok() && restore_checksum_) {
    std::lock_guard lock(mutex_);
    for (const RoomPiece& piece : pieces) {
      restored_pieces_.push_back({piece.target, piece.bytes, piece.crc});
    }
  }
  restore_flights_->Launch(scope, status, [this, room](const absl::Status& landed) {
    std::byte* const buffer = room.data();
    {
      std::lock_guard lock(mutex_);
      if (restored_.ok()) restored_ = landed;
      buffers_->Give({&buffer, 1});
    }
    changed_.notify_all();
  });
  return status;
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
