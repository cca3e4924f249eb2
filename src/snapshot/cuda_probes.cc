#include "snapshot/cuda_probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <utility>

#include "snapshot/cuda_image.h"

namespace unreft::snapshot {
namespace {

using probing::Shard;

// What the trial looks at, in pinned memory: whole ones and larger ones, at odd addresses.
struct Trial {
  static constexpr uint64_t kSizes[] = {1, 77, 128, 129, 3000};
  static constexpr size_t kCount = std::size(kSizes);
  static constexpr uint32_t kLines = 2;
  static constexpr Step kStep{7};

  Shard shards[kCount];
  uint64_t digests[kCount];
  uint32_t began;
  std::byte bytes[4096];
};

}  // namespace

// --- The beginning and the end ---

absl::StatusOr<std::unique_ptr<CudaProbes>> CudaProbes::Create(
    std::shared_ptr<const CudaDevice> device, cudaStream_t stream) {
  if (ProbeImage().empty()) {
    return absl::UnavailableError("this build of Unreft was made without nvcc");
  }
  auto kernel = CudaKernel::Load(device, ProbeImage(), probing::kKernelName);
  if (!kernel.ok()) return kernel.status();
  const CudaScope scope(*device);
  std::unique_ptr<CudaProbes> made(new CudaProbes(device, *std::move(kernel)));
  absl::Status status = scope.status();
  if (status.ok()) status = made->Try(scope, stream);
  if (!status.ok()) return status;
  return made;
}

CudaProbes::~CudaProbes() {
  const CudaScope scope(*device_);
  if (!scope.status().ok() || memory_ == nullptr) return;
  scope.Check(device_->api().cudaFreeHost(memory_), "freeing").IgnoreError();
}

absl::Status CudaProbes::Try(const CudaScope& scope, cudaStream_t stream) {
  const CudaApi& api = device_->api();
  void* memory = nullptr;
  absl::Status status =
      scope.Check(api.cudaHostAlloc(&memory, sizeof(Trial), cudaHostAllocMapped),
                  fmt::format("allocating {} bytes of pinned memory", sizeof(Trial)));
  if (!status.ok()) return absl::ResourceExhaustedError(status.message());
  auto* const trial = new (memory) Trial;
  for (size_t i = 0; i < sizeof(trial->bytes); ++i) {
    trial->bytes[i] = static_cast<std::byte>(i * i >> 3);
  }
  for (size_t i = 0; i < Trial::kCount; ++i) {
    trial->shards[i] = {reinterpret_cast<uint64_t>(trial->bytes + i), Trial::kSizes[i], i};
  }
  status = Compute(scope, trial->shards, trial->digests, &trial->began, Trial::kCount,
                   Trial::kLines, Trial::kStep, stream);
  if (status.ok()) {
    status = scope.Check(api.cudaStreamSynchronize(stream), "waiting for a kernel's trial");
    KernelEnded(&trial->began);
  }
  for (size_t i = 0; i < Trial::kCount && status.ok(); ++i) {
    const uint64_t needed =
        probing::DigestShard(trial->shards[i], Trial::kStep.value, Trial::kLines);
    if (trial->digests[i] == needed) continue;
    status = absl::InternalError(
        fmt::format("of {} bytes kernel {} computes {:016x}, needed {:016x}", Trial::kSizes[i],
                    probing::kKernelName, trial->digests[i], needed));
  }
  scope.Check(api.cudaFreeHost(memory), "freeing").IgnoreError();
  return status;
}

absl::Status CudaProbes::Reserve(const CudaScope& scope, size_t tensors) {
  if (tensors <= capacity_) return absl::OkStatus();
  const CudaApi& api = device_->api();
  if (memory_ != nullptr) {
    absl::Status status = scope.Check(api.cudaFreeHost(std::exchange(memory_, nullptr)), "freeing");
    capacity_ = 0;
    probes_ = nullptr;
    where_ = nullptr;
    if (!status.ok()) return status;
  }
  const size_t bytes = tensors * kBytesOfTensor + kPassesMax * sizeof(uint32_t);
  absl::Status status = scope.Check(
      api.cudaHostAlloc(&memory_, bytes, cudaHostAllocMapped),
      fmt::format("allocating {} bytes of pinned memory for {} tensors", bytes, tensors));
  if (!status.ok()) {
    memory_ = nullptr;
    return absl::ResourceExhaustedError(status.message());
  }
  shards_ = static_cast<Shard*>(memory_);
  digests_ = reinterpret_cast<uint64_t*>(shards_ + tensors);
  began_ = reinterpret_cast<uint32_t*>(digests_ + kPassesMax * tensors);
  capacity_ = tensors;
  return absl::OkStatus();
}

// --- A pass ---

absl::StatusOr<CudaProbes::Pass> CudaProbes::TakeArea(const ProbeOp& op) {
  const size_t count = op.probes->device_count();
  if (count > capacity_) {
    return absl::FailedPreconditionError(
        fmt::format("samples of {} tensors on a device: found room for {}", count, capacity_));
  }
  std::lock_guard lock(mutex_);
  const auto free = std::find(std::begin(taken_), std::end(taken_), false);
  const bool same = probes_ == op.probes && where_ == op.memory;
  // Kernels that are under way read the shards.
  const bool idle = std::find(std::begin(taken_), std::end(taken_), true) == std::end(taken_);
  if (free == std::end(taken_) || (!same && !idle)) {
    return absl::InternalError(
        fmt::format("samples of {} tensors on a device: the last ones are not over", count));
  }
  if (!same) {
    op.probes->FillDeviceShards(*op.memory, {shards_, count});
    probes_ = op.probes;
    where_ = op.memory;
  }
  *free = true;
  return Pass{.area = static_cast<size_t>(free - std::begin(taken_)), .count = count};
}

void CudaProbes::GiveArea(const Pass& pass) {
  std::lock_guard lock(mutex_);
  taken_[pass.area] = false;
}

absl::StatusOr<CudaProbes::Pass> CudaProbes::Launch(const CudaScope& scope, const ProbeOp& op,
                                                    cudaStream_t stream) {
  absl::StatusOr<Pass> pass = TakeArea(op);
  if (!pass.ok()) return pass.status();
  const absl::Status status = Compute(scope, shards_, DigestsOf(*pass), began_ + pass->area,
                                      pass->count, op.probes->lines(), op.step, stream);
  if (status.ok()) return pass;
  GiveArea(*pass);
  return status;
}

absl::Status CudaProbes::Compute(const CudaScope& scope, const Shard* shards, uint64_t* digests,
                                 uint32_t* began, size_t count, uint32_t lines, Step step,
                                 cudaStream_t stream) {
  auto tensors = static_cast<uint32_t>(count);
  uint64_t of_step = step.value;
  void* arguments[] = {&shards, &digests, &began, &tensors, &lines, &of_step};
  const uint32_t blocks = (tensors + probing::kThreads - 1) / probing::kThreads;
  std::atomic_ref(*began).store(0, std::memory_order_relaxed);
  device_->api().own_kernels.Launched(began);
  absl::Status status =
      kernel_->Launch(scope, std::min(blocks, kBlocksMax), probing::kThreads, arguments, stream);
  if (!status.ok()) device_->api().own_kernels.Ended(began, /*well=*/true);
  return status;
}

void CudaProbes::Finish(const Pass& pass, std::span<uint64_t> digests) {
  std::copy_n(DigestsOf(pass), pass.count, digests.begin());
  device_->api().own_kernels.Ended(began_ + pass.area, /*well=*/true);
  GiveArea(pass);
}

void CudaProbes::Drop(const Pass& pass) {
  KernelEnded(began_ + pass.area);
  GiveArea(pass);
}

void CudaProbes::KernelEnded(uint32_t* began) {
  const CudaScope scope(*device_);
  // After a reset `began` is gone, and so is whatever it has done.
  const bool reset = absl::IsFailedPrecondition(scope.status());
  device_->api().own_kernels.Ended(began, /*well=*/reset || scope.status().ok());
}

}  // namespace unreft::snapshot
