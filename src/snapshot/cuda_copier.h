// CudaCopier: copies between the tensors of one CUDA device and host memory.
//
//   training thread   Begin: event ─▶ side stream waits        Fence: stream waits for side stream
//   executor          CopyBucket: queue
//   copy thread       a bucket's copies as one batch on the side stream, then an event
//   flights thread    event reached: buffers ─▶ slot where needed, then `done`
//   pins thread       registers slots, chunk by chunk
//
// A copy goes straight to host memory that is registered and otherwise by way of pinned buffers:
// never to pageable memory. All of a bucket's pieces are one call, so that thousands of small
// tensors cost no thousands of calls (design note "Batches, not a packing kernel").
//
// Where CRCs are asked for (CudaOptions::checksum), the device computes them on a stream of their
// own, for which the bucket's batch waits and brings them along; after a restore it reads what it
// was given again. Tensors are looked at by a kernel on the side stream, before the copies of a
// snapshot and behind them (CudaProbes).
//
// Thread-safe as DeviceCopier says. Once the device is reset every call fails; it is replaced then.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "snapshot/cuda_buffers.h"
#include "snapshot/cuda_checksum.h"
#include "snapshot/cuda_device.h"
#include "snapshot/cuda_flights.h"
#include "snapshot/cuda_options.h"
#include "snapshot/cuda_pins.h"
#include "snapshot/cuda_probes.h"
#include "snapshot/device_copier.h"

namespace unreft::snapshot {

class CudaCopier final : public DeviceCopier {
 public:
  // Unavailable, InvalidArgument, ResourceExhausted: see CudaApi, CudaDevice, CudaBuffers.
  static absl::StatusOr<std::unique_ptr<CudaCopier>> Create(Executor& executor, int device,
                                                            const CudaOptions& options);
  // Waits for the copies that are under way; those that are not enqueued are answered Cancelled.
  ~CudaCopier() override;

  absl::Status Accept(std::span<const BoundTensor> tensors) override;
  absl::Status Reserve(uint64_t volatile_bytes) override;
  absl::Status ReserveProbes(size_t tensors) override;
  std::shared_ptr<void> Pin(std::shared_ptr<const void> owner,
                            std::span<std::byte> memory) override;
  absl::Status SetWriters(std::vector<void*> streams) override;

  absl::Status Begin(void* stream) override;
  absl::StatusOr<std::vector<CopyOp>> CopyVolatile(std::vector<CopyOp> ops, void* stream) override;
  void ProbeNow(ProbeOp op, void* stream, absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status CopyNow(std::span<const CopyOp> ops) override;
  void AwaitEnqueued(Duration limit) override;
  absl::Status Fence(void* stream) override;
  void CopyBucket(std::vector<CopyOp> ops, absl::AnyInvocable<void(absl::Status)> done) override;
  void ProbeLater(ProbeOp op, absl::AnyInvocable<void(absl::Status)> done) override;

  absl::Status BeginRestore() override;
  absl::Status Restore(std::span<const CopyOp> ops) override;
  std::span<std::byte> TakeRoom() override;
  absl::Status Send(std::span<std::byte> room, std::span<const RoomPiece> pieces) override;
  absl::Status EndRestore() override;

  std::string Describe() const override;

  const CudaPins& pins() const { return *pins_; }

 private:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Copies, or a look.
  struct Bucket {
    std::vector<CopyOp> ops;
    Done done;
    std::optional<ProbeOp> probe;
  };
  // What a bucket becomes: copies from the device, and from buffers to where they were meant.
  struct Route {
    std::vector<CopyOp> copies;
    std::vector<CopyOp> moves;
    std::vector<std::byte*> buffers;
  };

  // What a restore gave to the device, as it was where it came from.
  struct RestoredPiece {
    const std::byte* at = nullptr;
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };

  CudaCopier(Executor& executor, std::shared_ptr<const CudaDevice> device,
             const CudaOptions& options)
      : executor_(executor), device_(std::move(device)), options_(options) {}
  absl::Status Open();
  absl::Status OpenChecksums();

  absl::Status CheckTensor(const BoundTensor& tensor) const;
  absl::Status CheckNotCapturing(const CudaScope& scope, cudaStream_t stream) const;
  absl::Status CheckNoneCaptures(const CudaScope& scope, cudaStream_t stream) const;
  absl::Status Follow(const CudaScope& scope, cudaStream_t stream, cudaEvent_t event) const;
  absl::Status HoldWriters(const CudaScope& scope, cudaStream_t stream) const;
  absl::Status IssueBatch(const CudaScope& scope, std::span<const CopyOp> copies,
                          cudaMemcpyKind kind, cudaStream_t stream) const;

  void Run();
  bool FrontMayGoLocked();
  Route MakeRoute(std::span<const CopyOp> ops, std::vector<std::byte*> buffers) const;
  uint64_t UnpinnedBytes(std::span<const CopyOp> ops) const;
  void Enqueue(Bucket bucket, Route route);
  void EnqueueProbe(Bucket bucket);
  void LaunchProbe(const CudaScope& scope, absl::Status before, ProbeOp op, Done done,
                   std::optional<cudaStream_t> holds);
  absl::Status LaunchChecksum(const CudaScope& scope, std::vector<CopyOp> ops, Route& route,
                              std::optional<CudaChecksum::Pass>& pass);
  void Answer(Done done, absl::Status status);
  absl::Status CheckRestored(std::span<const RestoredPiece> pieces);
  absl::Status WrongOnDevice(const RestoredPiece& piece, uint32_t found) const;

  Executor& executor_;
  const std::shared_ptr<const CudaDevice> device_;
  const CudaOptions options_;

  cudaStream_t side_ = nullptr;     // of captures
  cudaStream_t restore_ = nullptr;  // of restores
  cudaStream_t checks_ = nullptr;   // of checksums; null unless options_.checksum
  cudaEvent_t began_ = nullptr;     // on the streams that Begin follows, one after the other
  cudaEvent_t staged_ = nullptr;    // on the side stream, behind what writers wait for
  cudaEvent_t checked_ = nullptr;   // on that of checksums, before the bucket's copies
  std::unique_ptr<CudaBuffers> buffers_;
  std::unique_ptr<CudaChecksum> checksum_;          // null unless options_.checksum, as is
  std::unique_ptr<CudaChecksum> restore_checksum_;  // the one of the restore's stream
  std::mutex restore_checks_;                       // held during a check of restored pieces
  std::unique_ptr<CudaProbes> probes_;              // null until room is made for them
  std::unique_ptr<CudaPins> pins_;
  void* staging_ = nullptr;  // on the device
  uint64_t staging_bytes_ = 0;
  std::vector<cudaStream_t> writers_;  // of the training thread

  mutable std::mutex mutex_;  // covers all below
  std::condition_variable changed_;
  std::deque<Bucket> queue_;
  Route next_route_;        // of the first in the queue, once buffers were found for it
  bool routed_ = false;     // next_route_ is its
  bool enqueuing_ = false;  // one that was taken from the queue
  bool ending_ = false;
  absl::Status restored_;  // the first error of the restore under way
  std::vector<RestoredPiece> restored_pieces_;
  std::vector<BoundTensor> accepted_;  // the last ones, for messages; only with options_.checksum

  // Last: their threads use what is above.
  std::unique_ptr<CudaFlights> flights_;
  std::unique_ptr<CudaFlights> restore_flights_;
  std::thread thread_;
};

}  // namespace unreft::snapshot
