// CudaChecksum: the CRC32C of memory of a device, computed there by a kernel that libunreft brings
// (design note "A checksum before the copy").
//
//   Launch: pieces ─▶ pinned, whence the kernel reads them ─▶ remainders, on the device
//           Results: the copy that brings them to the host, for the caller's next batch
//   Finish: remainders ─▶ CRC32Cs
//
// Each piece is cut into chunks, one per warp. A pass is one launch; what it needs of memory it has
// from a ring, so passes end in the order in which they began. One thread launches, another may
// finish. Thread-safe as such.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "snapshot/cuda_checksum_kernel.h"
#include "snapshot/cuda_kernel.h"
#include "snapshot/device_copier.h"

namespace unreft::snapshot {

class CudaChecksum {
 public:
  // Of a piece, for one warp at a time.
  static constexpr size_t kChunkBytes = size_t{32} << 10;
  // So few that the job's kernels keep most of the device; enough for many times the rate of a
  // copy.
  static constexpr uint32_t kBlocksMax = 32;

  struct Pass {
    std::vector<CopyOp> ops;  // whose `crc` is set
    uint64_t begin = 0;       // of its place in the ring
    uint64_t end = 0;
    size_t first = 0;  // of its chunks
    size_t chunks = 0;
  };

  // The kernel, after it was tried on this device. Unavailable names what is missing; Internal when
  // it computes something else.
  static absl::StatusOr<std::shared_ptr<const CudaKernel>> LoadKernel(
      std::shared_ptr<const CudaDevice> device, cudaStream_t stream);

  // For passes of `chunks_max` chunks together. ResourceExhausted names the bytes. In a CudaScope,
  // as its end is.
  static absl::StatusOr<std::unique_ptr<CudaChecksum>> Create(
      std::shared_ptr<const CudaDevice> device, std::shared_ptr<const CudaKernel> kernel,
      size_t chunks_max);
  ~CudaChecksum();
  CudaChecksum(const CudaChecksum&) = delete;
  CudaChecksum& operator=(const CudaChecksum&) = delete;

  size_t chunks_max() const { return chunks_max_; }
  // Of the pieces whose CRC is asked for.
  static size_t ChunksOf(std::span<const CopyOp> ops);
  // Whether a pass of so many chunks, chunks_max at most, can be launched.
  bool HasRoom(size_t chunks) const;

  // Has `ops` read on the device, after what `stream` was given before. In a CudaScope.
  absl::StatusOr<Pass> Launch(const CudaScope& scope, std::vector<CopyOp> ops, cudaStream_t stream);
  // Device to host; to be done before Finish, after the launch.
  CopyOp Results(const Pass& pass) const;
  // Sets the CRCs of its ops and gives up its place.
  void Finish(const Pass& pass);
  // Gives up the place of a pass that came to nothing.
  void Drop(const Pass& pass);

  // The CRCs of any number of ops, waiting for them. In a CudaScope.
  absl::Status ComputeNow(const CudaScope& scope, std::span<const CopyOp> ops, cudaStream_t stream);

 private:
  CudaChecksum(std::shared_ptr<const CudaDevice> device, std::shared_ptr<const CudaKernel> kernel,
               size_t chunks_max)
      : device_(std::move(device)), kernel_(std::move(kernel)), chunks_max_(chunks_max) {}
  absl::Status Allocate(const CudaScope& scope);
  absl::Status Try(const CudaScope& scope, cudaStream_t stream);
  absl::Status Compare(const CudaScope& scope, std::span<const std::byte> bytes,
                       const std::byte* on_device, cudaStream_t stream);
  uint64_t EndLocked(size_t chunks) const;
  void FillPieces(const Pass& pass);

  const std::shared_ptr<const CudaDevice> device_;
  const std::shared_ptr<const CudaKernel> kernel_;
  const size_t chunks_max_;
  checksum::Piece* pieces_ = nullptr;  // pinned
  uint32_t* remainders_ = nullptr;     // pinned
  uint32_t* device_remainders_ = nullptr;

  mutable std::mutex mutex_;  // covers the ring: chunks given out since the beginning, and back
  uint64_t given_ = 0;
  uint64_t back_ = 0;
};

}  // namespace unreft::snapshot
