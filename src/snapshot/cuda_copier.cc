#include "snapshot/cuda_copier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "snapshot/stream_copy.h"

namespace unreft::snapshot {
namespace {

cudaStream_t ToStream(void* stream) { return static_cast<cudaStream_t>(stream); }

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

}  // namespace

// --- The beginning and the end ---

absl::StatusOr<std::unique_ptr<CudaCopier>> CudaCopier::Create(Executor& executor, int device,
                                                               const CudaOptions& options) {
  absl::StatusOr<std::shared_ptr<const CudaApi>> api = CudaApi::Load();
  if (!api.ok()) return api.status();
  absl::StatusOr<std::shared_ptr<const CudaDevice>> opened = CudaDevice::Open(*api, device);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<CudaCopier> copier(new CudaCopier(executor, *opened, options));
  if (absl::Status status = copier->Open(); !status.ok()) return status;
  return copier;
}

absl::Status CudaCopier::Open() {
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  const CudaApi& api = device_->api();
  for (cudaStream_t* stream : {&side_, &restore_}) {
    absl::Status status = scope.Check(api.cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                                      "making a stream");
    if (!status.ok()) return status;
  }
  for (cudaEvent_t* event : {&began_, &staged_}) {
    absl::Status status =
        scope.Check(api.cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
    if (!status.ok()) return status;
  }
  auto buffers = CudaBuffers::Create(device_, options_.buffer_bytes, options_.buffers);
  if (!buffers.ok()) return buffers.status();
  buffers_ = *std::move(buffers);
  if (options_.checksum) {
    if (absl::Status status = OpenChecksums(); !status.ok()) return status;
  }
  pins_ = std::make_unique<CudaPins>(device_, options_.pin_chunk_bytes);
  flights_ = std::make_unique<CudaFlights>(device_, side_);
  restore_flights_ = std::make_unique<CudaFlights>(device_, restore_);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

CudaCopier::~CudaCopier() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  for (Bucket& bucket : queue_) {
    Answer(std::move(bucket.done), absl::CancelledError("the copier ended"));
  }
  restore_flights_.reset();
  flights_.reset();
  pins_.reset();
  const CudaScope scope(*device_);
  checksum_.reset();
  restore_checksum_.reset();
  probes_.reset();
  buffers_.reset();
  if (!scope.status().ok()) return;  // what is below is gone with the context
  const CudaApi& api = device_->api();
  for (cudaEvent_t event : {began_, staged_, checked_}) {
    if (event != nullptr) scope.Check(api.cudaEventDestroy(event), "an event's end").IgnoreError();
  }
  for (cudaStream_t stream : {side_, restore_, checks_}) {
    if (stream != nullptr) {
      scope.Check(api.cudaStreamDestroy(stream), "a stream's end").IgnoreError();
    }
  }
  if (staging_ != nullptr) scope.Check(api.cudaFree(staging_), "freeing").IgnoreError();
}

std::string CudaCopier::Describe() const {
  const CudaPins::Progress pins = pins_->progress();
  std::string text = fmt::format("CUDA device {}, {} of {} bytes pinned", device_->index(),
                                 pins.pinned, pins.bytes);
  if (checksum_) text += ", checksums on the device";
  if (!pins.refused.ok()) {
    text += fmt::format("; the rest goes through buffers: {}", std::string(pins.refused.message()));
  }
  return text;
}

// --- Registration ---

absl::Status CudaCopier::Accept(std::span<const BoundTensor> tensors) {
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  for (const BoundTensor& tensor : tensors) {
    if (absl::Status status = CheckTensor(tensor); !status.ok()) return status;
  }
  if (!options_.checksum) return absl::OkStatus();
  std::vector<BoundTensor> accepted(tensors.begin(), tensors.end());
  std::lock_guard lock(mutex_);
  accepted_.swap(accepted);
  return absl::OkStatus();
}

absl::Status CudaCopier::CheckTensor(const BoundTensor& tensor) const {
  const auto refuse = [&](std::string found) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {}: needed memory of CUDA device {}, "
                    "found {}",
                    tensor.spec.name, device_->index(), found));
  };
  if (tensor.cuda_device != device_->index()) {
    return refuse(fmt::format("CUDA device {}; a client captures one device", tensor.cuda_device));
  }
  if (ShardBytes(tensor.spec) == 0) return absl::OkStatus();
  cudaPointerAttributes attributes{};
  const cudaError_t error = device_->api().cudaPointerGetAttributes(&attributes, tensor.data);
  if (error != cudaSuccess) {
    device_->api().cudaGetLastError();
    return device_->api().ToStatus(error, fmt::format("looking at tensor {}", tensor.spec.name));
  }
  const bool on_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  if (!on_device) return refuse("memory of the host");
  if (attributes.device != device_->index()) {
    return refuse(fmt::format("device {}", attributes.device));
  }
  return absl::OkStatus();
}

absl::Status CudaCopier::Reserve(uint64_t volatile_bytes) {
  if (volatile_bytes > options_.staging_bytes_max) {
    return absl::ResourceExhaustedError(
        fmt::format("volatile tensors on CUDA device {}: needed {} bytes of staging, found {}",
                    device_->index(), volatile_bytes, options_.staging_bytes_max));
  }
  if (volatile_bytes <= staging_bytes_) return absl::OkStatus();
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  const CudaApi& api = device_->api();
  if (staging_ != nullptr) {
    if (absl::Status status = scope.Check(api.cudaFree(staging_), "freeing"); !status.ok()) {
      return status;
    }
    staging_ = nullptr;
    staging_bytes_ = 0;
  }
  absl::Status status = scope.Check(
      api.cudaMalloc(&staging_, volatile_bytes),
      fmt::format("allocating {} bytes on the device, where volatile tensors are staged at a "
                  "snapshot",
                  volatile_bytes));
  if (!status.ok()) {
    staging_ = nullptr;
    return absl::ResourceExhaustedError(status.message());
  }
  staging_bytes_ = volatile_bytes;
  return absl::OkStatus();
}

std::shared_ptr<void> CudaCopier::Pin(std::shared_ptr<const void> owner,
                                      std::span<std::byte> memory) {
  return pins_->Pin(std::move(owner), memory);
}

absl::Status CudaCopier::SetWriters(std::vector<void*> streams) {
  writers_.clear();
  for (void* stream : streams) writers_.push_back(ToStream(stream));
  return absl::OkStatus();
}

// --- The training thread ---

absl::Status CudaCopier::CheckNotCapturing(const CudaScope& scope, cudaStream_t stream) const {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t error = device_->api().cudaStreamIsCapturing(stream, &capture);
  // The legacy default stream is not asked while another one captures.
  if (error != cudaErrorStreamCaptureImplicit) {
    if (absl::Status status = scope.Check(error, "looking at the stream"); !status.ok()) {
      return status;
    }
    if (capture == cudaStreamCaptureStatusNone) return absl::OkStatus();
  } else {
    device_->api().cudaGetLastError();
  }
  return absl::FailedPreconditionError("a graph is being captured: take no snapshot within");
}

absl::Status CudaCopier::CheckNoneCaptures(const CudaScope& scope, cudaStream_t stream) const {
  if (!scope.status().ok()) return scope.status();
  absl::Status status = CheckNotCapturing(scope, stream);
  for (cudaStream_t writer : writers_) {
    if (status.ok()) status = CheckNotCapturing(scope, writer);
  }
  return status;
}

absl::Status CudaCopier::Begin(void* stream) {
  const CudaScope scope(*device_);
  absl::Status status = CheckNoneCaptures(scope, ToStream(stream));
  if (status.ok()) status = Follow(scope, ToStream(stream), began_);
  for (cudaStream_t writer : writers_) {
    if (status.ok()) status = Follow(scope, writer, began_);
  }
  return status;
}

// A wait takes the event as it was recorded last, so one event will do for all streams.
absl::Status CudaCopier::Follow(const CudaScope& scope, cudaStream_t stream,
                                cudaEvent_t event) const {
  const CudaApi& api = device_->api();
  absl::Status status = scope.Check(api.cudaEventRecord(event, stream), "recording an event");
  if (!status.ok()) return status;
  status = scope.Check(api.cudaStreamWaitEvent(side_, event, 0), "ordering the side stream");
  if (!status.ok() || checks_ == nullptr) return status;
  return scope.Check(api.cudaStreamWaitEvent(checks_, event, 0), "ordering the checksums");
}

// On the side stream, which is idle between snapshots, so that they are one batch also where the
// training stream is the legacy one, which takes none; those who write wait for it.
absl::StatusOr<std::vector<CopyOp>> CudaCopier::CopyVolatile(std::vector<CopyOp> ops,
                                                             void* stream) {
  std::vector<CopyOp> copies;
  uint64_t at = 0;
  for (CopyOp& op : ops) {
    std::byte* const staged = static_cast<std::byte*>(staging_) + at;
    copies.push_back({op.source, staged, op.bytes, true});
    op.source = staged;
    at += Aligned(op.bytes);
  }
  if (at > staging_bytes_) {
    return absl::ResourceExhaustedError(
        fmt::format("volatile tensors: needed {} bytes of staging, found {}", at, staging_bytes_));
  }
  const CudaScope scope(*device_);
  absl::Status status = CheckNoneCaptures(scope, ToStream(stream));
  if (status.ok()) status = IssueBatch(scope, copies, cudaMemcpyDeviceToDevice, side_);
  if (status.ok()) status = HoldWriters(scope, ToStream(stream));
  if (status.ok() && checks_ != nullptr) {
    status = scope.Check(device_->api().cudaStreamWaitEvent(checks_, staged_, 0),
                         "ordering the checksums");
  }
  if (!status.ok()) return status;
  return ops;
}

// `stream`, and all who write, wait for what the side stream was given so far.
absl::Status CudaCopier::HoldWriters(const CudaScope& scope, cudaStream_t stream) const {
  const CudaApi& api = device_->api();
  absl::Status status = scope.Check(api.cudaEventRecord(staged_, side_), "recording an event");
  std::vector<cudaStream_t> waiting = writers_;
  waiting.push_back(stream);
  for (cudaStream_t writer : waiting) {
    if (!status.ok()) break;
    status = scope.Check(api.cudaStreamWaitEvent(writer, staged_, 0), "ordering a writer");
  }
  return status;
}

absl::Status CudaCopier::CopyNow(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) {
    UNREFT_CHECK(!op.on_device, "only host memory is copied at once");
    StreamCopy(op.target, op.source, op.bytes);
    if (op.crc != nullptr) *op.crc = Crc32c({op.source, op.bytes});
  }
  StreamFence();
  return absl::OkStatus();
}

void CudaCopier::AwaitEnqueued(Duration limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return queue_.empty() && !enqueuing_; });
}

absl::Status CudaCopier::Fence(void* stream) {
  std::deque<Bucket> dropped;
  {
    std::unique_lock lock(mutex_);
    dropped.swap(queue_);
    buffers_->Give(next_route_.buffers);
    next_route_ = {};
    routed_ = false;
    // One call's time: it is given up, or it counts.
    changed_.wait(lock, [this] { return !enqueuing_; });
  }
  for (Bucket& bucket : dropped) {
    Answer(std::move(bucket.done),
           absl::AbortedError("the fence came before the copy was enqueued"));
  }
  const CudaScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status status = CheckNotCapturing(scope, ToStream(stream)); !status.ok()) return status;
  return flights_->MakeWait(scope, ToStream(stream));
}

// --- Buckets ---

void CudaCopier::CopyBucket(std::vector<CopyOp> ops, Done done) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(ops), std::move(done)});
  }
  changed_.notify_all();
}

void CudaCopier::Answer(Done done, absl::Status status) {
  executor_.Post(
      [done = std::move(done), status = std::move(status)]() mutable { done(std::move(status)); });
}

void CudaCopier::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || FrontMayGoLocked(); });
    if (ending_) break;
    Bucket bucket = std::move(queue_.front());
    queue_.pop_front();
    Route route = std::exchange(next_route_, {});
    routed_ = false;
    enqueuing_ = true;
    lock.unlock();
    bucket.probe ? EnqueueProbe(std::move(bucket)) : Enqueue(std::move(bucket), std::move(route));
    lock.lock();
    enqueuing_ = false;
    changed_.notify_all();
  }
}

// Routes the first of the queue if there are buffers for what of it is not registered: until then
// a fence may still drop it.
bool CudaCopier::FrontMayGoLocked() {
  if (queue_.empty() || flights_->count() >= options_.enqueued_max) return false;
  if (routed_) return true;
  const std::vector<CopyOp>& ops = queue_.front().ops;
  if (checksum_) {
    const size_t chunks = CudaChecksum::ChunksOf(ops);
    if (chunks <= checksum_->chunks_max() && !checksum_->HasRoom(chunks)) return false;
  }
  const uint64_t unpinned = UnpinnedBytes(ops);
  const size_t needed = (unpinned + buffers_->buffer_bytes() - 1) / buffers_->buffer_bytes();
  // More than there are: Enqueue says so.
  std::vector<std::byte*> taken;
  if (needed <= buffers_->count()) {
    taken = buffers_->TryTake(needed);
    if (taken.size() < needed) return false;
  }
  next_route_ = MakeRoute(ops, std::move(taken));
  routed_ = true;
  return true;
}

uint64_t CudaCopier::UnpinnedBytes(std::span<const CopyOp> ops) const {
  uint64_t bytes = 0;
  for (const CopyOp& op : ops) {
    for (uint64_t at = 0; at < op.bytes;) {
      const CudaPins::Run run = pins_->Find(op.target + at);
      const uint64_t here =
          std::min<uint64_t>(op.bytes - at, run.end - reinterpret_cast<uintptr_t>(op.target + at));
      if (!run.pinned) bytes += here;
      at += here;
    }
  }
  return bytes;
}

// More may have been registered since the buffers were counted, never less.
CudaCopier::Route CudaCopier::MakeRoute(std::span<const CopyOp> ops,
                                        std::vector<std::byte*> buffers) const {
  Route route{.buffers = std::move(buffers)};
  size_t buffer = 0;
  uint64_t used = 0;
  for (const CopyOp& op : ops) {
    for (uint64_t at = 0; at < op.bytes;) {
      std::byte* const target = op.target + at;
      const CudaPins::Run run = pins_->Find(target);
      uint64_t here =
          std::min<uint64_t>(op.bytes - at, run.end - reinterpret_cast<uintptr_t>(target));
      if (run.pinned) {
        route.copies.push_back({op.source + at, target, here, true});
      } else if (buffer < route.buffers.size()) {
        here = std::min<uint64_t>(here, buffers_->buffer_bytes() - used);
        std::byte* const place = route.buffers[buffer] + used;
        route.copies.push_back({op.source + at, place, here, true});
        route.moves.push_back({place, target, here});
        used += here;
        if (used == buffers_->buffer_bytes()) {
          ++buffer;
          used = 0;
        }
      } else {
        route.copies.clear();  // a bucket larger than all buffers together
        route.moves.clear();
        return route;
      }
      at += here;
    }
  }
  return route;
}

void CudaCopier::Enqueue(Bucket bucket, Route route) {
  const CudaScope scope(*device_);
  absl::Status status = scope.status();
  if (status.ok() && route.copies.empty() && !bucket.ops.empty()) {
    status = absl::InternalError(fmt::format("a bucket is larger than {} buffers of {} bytes",
                                             buffers_->count(), buffers_->buffer_bytes()));
  }
  auto pass = std::make_shared<std::optional<CudaChecksum::Pass>>();
  if (status.ok()) status = LaunchChecksum(scope, std::move(bucket.ops), route, *pass);
  if (status.ok()) status = IssueBatch(scope, route.copies, cudaMemcpyDeviceToHost, side_);
  flights_->Launch(scope, std::move(status),
                   [this, pass, moves = std::move(route.moves), buffers = std::move(route.buffers),
                    done = std::move(bucket.done)](absl::Status status) mutable {
                     if (status.ok()) CopyNow(moves).IgnoreError();
                     if (*pass) status.ok() ? checksum_->Finish(**pass) : checksum_->Drop(**pass);
                     {
                       std::lock_guard lock(mutex_);
                       buffers_->Give(buffers);
                     }
                     changed_.notify_all();
                     Answer(std::move(done), std::move(status));
                   });
}

absl::Status CudaCopier::IssueBatch(const CudaScope& scope, std::span<const CopyOp> copies,
                                    cudaMemcpyKind kind, cudaStream_t stream) const {
  if (copies.empty()) return absl::OkStatus();
  const CudaApi& api = device_->api();
  if (copies.size() == 1) {
    const CopyOp& copy = copies[0];
    return scope.Check(api.cudaMemcpyAsync(copy.target, copy.source, copy.bytes, kind, stream),
                       fmt::format("copying {} bytes", copy.bytes));
  }
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<size_t> sizes;
  for (const CopyOp& copy : copies) {
    targets.push_back(copy.target);
    sources.push_back(copy.source);
    sizes.push_back(copy.bytes);
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  return scope.Check(api.cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(),
                                              copies.size(), &attributes, &first, 1, stream),
                     fmt::format("copying {} pieces", copies.size()));
}

}  // namespace unreft::snapshot
