#include "snapshot/cuda_checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/crc32c.h"
#include "snapshot/cuda_image.h"

namespace unreft::snapshot {
namespace {

using checksum::Piece;

// For the trial: more than a chunk, and not whole words.
constexpr size_t kTrialBytes = 3 * CudaChecksum::kChunkBytes + 77;
constexpr size_t kTrialChunks = 64;

uint64_t ChunksOfOp(const CopyOp& op) {
  return (op.bytes + CudaChecksum::kChunkBytes - 1) / CudaChecksum::kChunkBytes;
}

// Most pieces of a bucket are of one size.
class OfZerosCached {
 public:
  uint32_t operator()(uint64_t bytes) {
    if (bytes != bytes_) crc_ = crc32c::OfZeros(bytes_ = bytes);
    return crc_;
  }

 private:
  uint64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace

// --- The beginning and the end ---

absl::StatusOr<std::shared_ptr<const CudaKernel>> CudaChecksum::LoadKernel(
    std::shared_ptr<const CudaDevice> device, cudaStream_t stream) {
  const auto refused = [&](const absl::Status& why) {
    const std::string text = fmt::format("device_checksum on CUDA device {}: {}", device->index(),
                                         std::string(why.message()));
    return absl::Status(why.code(), text);
  };
  if (ChecksumImage().empty()) {
    return refused(absl::UnavailableError("this build of Unreft was made without nvcc"));
  }
  auto kernel = CudaKernel::Load(device, ChecksumImage(), checksum::kKernelName);
  if (!kernel.ok()) return refused(kernel.status());
  auto trial = Create(device, *kernel, kTrialChunks);
  if (!trial.ok()) return refused(trial.status());
  const CudaScope scope(*device);
  absl::Status status = scope.status();
  if (status.ok()) status = (*trial)->Try(scope, stream);
  if (!status.ok()) return refused(status);
  return *kernel;
}

absl::StatusOr<std::unique_ptr<CudaChecksum>> CudaChecksum::Create(
    std::shared_ptr<const CudaDevice> device, std::shared_ptr<const CudaKernel> kernel,
    size_t chunks_max) {
  std::unique_ptr<CudaChecksum> made(
      new CudaChecksum(std::move(device), std::move(kernel), chunks_max));
  const CudaScope scope(*made->device_);
  absl::Status status = scope.status();
  if (status.ok()) status = made->Allocate(scope);
  if (!status.ok()) return status;
  return made;
}

absl::Status CudaChecksum::Allocate(const CudaScope& scope) {
  const CudaApi& api = device_->api();
  const size_t pinned = chunks_max_ * (sizeof(Piece) + sizeof(uint32_t));
  const size_t on_device = chunks_max_ * sizeof(uint32_t);
  void* host = nullptr;
  void* device = nullptr;
  absl::Status status =
      scope.Check(api.cudaHostAlloc(&host, pinned, cudaHostAllocMapped),
                  fmt::format("allocating {} bytes of pinned memory for checksums", pinned));
  if (status.ok()) {
    pieces_ = static_cast<Piece*>(host);
    remainders_ = reinterpret_cast<uint32_t*>(pieces_ + chunks_max_);
    status = scope.Check(api.cudaMalloc(&device, on_device),
                         fmt::format("allocating {} bytes for checksums", on_device));
  }
  if (!status.ok()) return absl::ResourceExhaustedError(status.message());
  device_remainders_ = static_cast<uint32_t*>(device);
  return absl::OkStatus();
}

CudaChecksum::~CudaChecksum() {
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return;
  const CudaApi& api = device_->api();
  if (device_remainders_ != nullptr) {
    scope.Check(api.cudaFree(device_remainders_), "freeing").IgnoreError();
  }
  if (pieces_ != nullptr) scope.Check(api.cudaFreeHost(pieces_), "freeing").IgnoreError();
}

// On bytes that are not all alike, at odd addresses, of several chunks: where a device runs the
// kernel otherwise than it was meant, it is not used.
absl::Status CudaChecksum::Try(const CudaScope& scope, cudaStream_t stream) {
  const CudaApi& api = device_->api();
  void* host = nullptr;
  void* device = nullptr;
  absl::Status status =
      scope.Check(api.cudaHostAlloc(&host, kTrialBytes, cudaHostAllocDefault), "allocating");
  if (status.ok()) status = scope.Check(api.cudaMalloc(&device, kTrialBytes), "allocating");
  if (status.ok()) {
    auto* bytes = static_cast<std::byte*>(host);
    for (size_t i = 0; i < kTrialBytes; ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
    status = scope.Check(
        api.cudaMemcpyAsync(device, host, kTrialBytes, cudaMemcpyHostToDevice, stream), "copying");
    if (status.ok()) {
      status = Compare(scope, {bytes, kTrialBytes}, static_cast<std::byte*>(device), stream);
    }
  }
  if (device != nullptr) scope.Check(api.cudaFree(device), "freeing").IgnoreError();
  if (host != nullptr) scope.Check(api.cudaFreeHost(host), "freeing").IgnoreError();
  return status;
}

absl::Status CudaChecksum::Compare(const CudaScope& scope, std::span<const std::byte> bytes,
                                   const std::byte* on_device, cudaStream_t stream) {
  std::array<uint32_t, 3> found{};
  std::vector<CopyOp> ops;
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t begin = i * 129;
    ops.push_back({on_device + begin, nullptr, bytes.size() - 2 * begin, true, &found[i]});
  }
  if (absl::Status status = ComputeNow(scope, ops, stream); !status.ok()) return status;
  for (size_t i = 0; i < found.size(); ++i) {
    const uint32_t needed = Crc32c(bytes.subspan(i * 129, ops[i].bytes));
    if (found[i] == needed) continue;
    return absl::InternalError(fmt::format("of {} bytes its kernel computes {:08x}, needed {:08x}",
                                           ops[i].bytes, found[i], needed));
  }
  return absl::OkStatus();
}

// --- The ring ---

size_t CudaChecksum::ChunksOf(std::span<const CopyOp> ops) {
  size_t chunks = 0;
  for (const CopyOp& op : ops) chunks += op.crc != nullptr ? ChunksOfOp(op) : 0;
  return chunks;
}

// Where a pass of so many chunks would end; they lie together, so what is left before the end of
// the ring may be passed over.
uint64_t CudaChecksum::EndLocked(size_t chunks) const {
  const size_t at = given_ % chunks_max_;
  const size_t passed_over = at + chunks > chunks_max_ ? chunks_max_ - at : 0;
  return given_ + passed_over + chunks;
}

bool CudaChecksum::HasRoom(size_t chunks) const {
  std::lock_guard lock(mutex_);
  return given_ == back_ || EndLocked(chunks) - back_ <= chunks_max_;
}

// --- A pass ---

absl::StatusOr<CudaChecksum::Pass> CudaChecksum::Launch(const CudaScope& scope,
                                                        std::vector<CopyOp> ops,
                                                        cudaStream_t stream) {
  Pass pass{.ops = std::move(ops)};
  pass.chunks = ChunksOf(pass.ops);
  {
    std::lock_guard lock(mutex_);
    if (given_ == back_) given_ = back_ = 0;
    pass.begin = given_;
    pass.end = EndLocked(pass.chunks);
    if (pass.end - back_ > chunks_max_) {
      return absl::ResourceExhaustedError(
          fmt::format("checksums of {} pieces at a time: found room for {}", pass.chunks,
                      chunks_max_ - (given_ - back_)));
    }
    given_ = pass.end;
    pass.first = (pass.end - pass.chunks) % chunks_max_;
  }
  if (pass.chunks == 0) return pass;
  FillPieces(pass);
  const Piece* pieces = pieces_ + pass.first;
  uint32_t* remainders = device_remainders_ + pass.first;
  auto count = static_cast<uint32_t>(pass.chunks);
  void* arguments[] = {&pieces, &remainders, &count};
  const auto blocks =
      static_cast<uint32_t>((pass.chunks + checksum::kWarps - 1) / checksum::kWarps);
  device_->api().own_kernels.Launched();
  absl::Status status =
      kernel_->Launch(scope, std::min(blocks, kBlocksMax), checksum::kThreads, arguments, stream);
  if (status.ok()) return pass;
  device_->api().own_kernels.Ended(nullptr, /*well=*/true);
  std::lock_guard lock(mutex_);
  given_ = pass.begin;  // none came after it
  return status;
}

void CudaChecksum::FillPieces(const Pass& pass) {
  Piece* piece = pieces_ + pass.first;
  for (const CopyOp& op : pass.ops) {
    for (size_t at = 0; at < op.bytes && op.crc != nullptr; at += kChunkBytes) {
      *piece++ = {reinterpret_cast<uint64_t>(op.source + at), std::min(kChunkBytes, op.bytes - at)};
    }
  }
}

CopyOp CudaChecksum::Results(const Pass& pass) const {
  return {reinterpret_cast<const std::byte*>(device_remainders_ + pass.first),
          reinterpret_cast<std::byte*>(remainders_ + pass.first), pass.chunks * sizeof(uint32_t),
          true};
}

void CudaChecksum::Finish(const Pass& pass) {
  static constexpr uint32_t kAfterChunk = crc32c::PowerOfBytes(kChunkBytes);
  OfZerosCached of_zeros;
  const uint32_t* remainder = remainders_ + pass.first;
  for (const CopyOp& op : pass.ops) {
    if (op.crc == nullptr) continue;
    uint32_t whole = 0;
    if (op.bytes > 0) whole = *remainder++;
    for (size_t at = kChunkBytes; at < op.bytes; at += kChunkBytes) {
      const size_t bytes = std::min(kChunkBytes, op.bytes - at);
      const uint32_t power = bytes == kChunkBytes ? kAfterChunk : crc32c::PowerOfBytes(bytes);
      whole = crc32c::Append(whole, *remainder++, power);
    }
    *op.crc = whole ^ of_zeros(op.bytes);
  }
  if (pass.chunks == 0) return;
  device_->api().own_kernels.Ended(nullptr, /*well=*/true);
  std::lock_guard lock(mutex_);
  back_ = pass.end;
}

// A kernel that may have broken the context stays counted: what is seen later may be its doing.
void CudaChecksum::Drop(const Pass& pass) {
  if (pass.chunks == 0) return;
  const CudaScope scope(*device_);
  device_->api().own_kernels.Ended(nullptr, scope.status().ok());
  std::lock_guard lock(mutex_);
  back_ = pass.end;
}

absl::Status CudaChecksum::ComputeNow(const CudaScope& scope, std::span<const CopyOp> ops,
                                      cudaStream_t stream) {
  const CudaApi& api = device_->api();
  while (!ops.empty()) {
    size_t count = 1;
    size_t chunks = ChunksOf(ops.first(1));
    for (; count < ops.size(); ++count) {
      chunks += ChunksOf(ops.subspan(count, 1));
      if (chunks > chunks_max_) break;
    }
    const std::span<const CopyOp> some = ops.first(count);
    absl::StatusOr<Pass> pass = Launch(scope, {some.begin(), some.end()}, stream);
    if (!pass.ok()) return pass.status();
    const CopyOp results = Results(*pass);
    absl::Status status;
    if (results.bytes > 0) {
      status = scope.Check(api.cudaMemcpyAsync(results.target, results.source, results.bytes,
                                               cudaMemcpyDeviceToHost, stream),
                           "copying checksums");
    }
    const absl::Status over =
        scope.Check(api.cudaStreamSynchronize(stream), "waiting for checksums");
    if (status.ok()) status = over;
    if (!status.ok()) {
      Drop(*pass);
      return status;
    }
    Finish(*pass);
    ops = ops.subspan(count);
  }
  return absl::OkStatus();
}

}  // namespace unreft::snapshot
