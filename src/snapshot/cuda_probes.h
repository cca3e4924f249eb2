// CudaProbes: what tensors on a device come to where they are looked at (TensorProbes), computed
// there by a kernel that libunreft brings (design note "Tensors are looked at where they are").
//
//   Launch: shards ─▶ pinned, whence the kernel reads them; it writes digests to pinned memory
//   Finish: digests ─▶ whoever asked, once the kernel is over
//
// A pass is one launch, whatever the number of tensors; where they lie is written down once for all
// passes of the same tensors at the same places. Thread-safe, but for Reserve.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "snapshot/cuda_kernel.h"
#include "snapshot/cuda_probe_kernel.h"
#include "snapshot/device_copier.h"

namespace unreft::snapshot {

class CudaProbes {
 public:
  // Of a snapshot: since the one before it, at its begin, and when its copies have ended.
  static constexpr size_t kPassesMax = 3;
  // Pinned, per tensor.
  static constexpr size_t kBytesOfTensor = sizeof(probing::Shard) + kPassesMax * sizeof(uint64_t);
  // So few that the job's kernels keep most of the device.
  static constexpr uint32_t kBlocksMax = 64;

  struct Pass {
    size_t area = 0;  // where its digests are
    size_t count = 0;
  };

  // The kernel is tried on the device. Unavailable names what is missing; Internal when it computes
  // something else. In a CudaScope, as its end is.
  static absl::StatusOr<std::unique_ptr<CudaProbes>> Create(
      std::shared_ptr<const CudaDevice> device, cudaStream_t stream);
  ~CudaProbes();
  CudaProbes(const CudaProbes&) = delete;
  CudaProbes& operator=(const CudaProbes&) = delete;

  // Room for so many tensors, while no pass is under way. ResourceExhausted names the bytes.
  absl::Status Reserve(const CudaScope& scope, size_t tensors);

  // Has them looked at after what `stream` was given before. In a CudaScope.
  absl::StatusOr<Pass> Launch(const CudaScope& scope, const ProbeOp& op, cudaStream_t stream);
  // Hands over the digests of a pass that is over, and gives up its place.
  void Finish(const Pass& pass, std::span<uint64_t> digests);
  // Gives up the place of a pass that came to nothing.
  void Drop(const Pass& pass);

 private:
  CudaProbes(std::shared_ptr<const CudaDevice> device, std::shared_ptr<const CudaKernel> kernel)
      : device_(std::move(device)), kernel_(std::move(kernel)) {}
  absl::Status Try(const CudaScope& scope, cudaStream_t stream);
  absl::Status Compute(const CudaScope& scope, const probing::Shard* shards, uint64_t* digests,
                       uint32_t* began, size_t count, uint32_t lines, Step step,
                       cudaStream_t stream);
  absl::StatusOr<Pass> TakeArea(const ProbeOp& op);
  void GiveArea(const Pass& pass);
  uint64_t* DigestsOf(const Pass& pass) const { return digests_ + pass.area * capacity_; }
  void KernelEnded(uint32_t* began);

  const std::shared_ptr<const CudaDevice> device_;
  const std::shared_ptr<const CudaKernel> kernel_;
  size_t capacity_ = 0;  // tensors
  void* memory_ = nullptr;
  probing::Shard* shards_ = nullptr;  // in memory_
  uint64_t* digests_ = nullptr;       // in memory_, per area
  uint32_t* began_ = nullptr;         // the same, of an area's kernel

  std::mutex mutex_;  // covers all below, and who writes shards_
  bool taken_[kPassesMax] = {};
  // Whose shards are written down; null: nobody's.
  std::shared_ptr<const TensorProbes> probes_;
  MemoryPtr where_;
};

}  // namespace unreft::snapshot
