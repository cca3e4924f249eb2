// CudaCopier's samples: digests of a few lines of tensors on the device, computed there.

#include <fmt/format.h>

#include <utility>

#include "snapshot/cuda_copier.h"

namespace unreft::snapshot {

absl::Status CudaCopier::ReserveProbes(size_t tensors) {
  const CudaScope scope(*device_);
  absl::Status status = scope.status();
  if (status.ok() && probes_ == nullptr) {
    auto made = CudaProbes::Create(device_, side_);
    status = made.status();
    if (made.ok()) probes_ = *std::move(made);
  }
  if (status.ok()) status = probes_->Reserve(scope, tensors);
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("CUDA device {}: {}", device_->index(),
                                                 std::string(status.message())));
}

// On the side stream, as what is staged: who writes waits for it.
void CudaCopier::ProbeNow(ProbeOp op, void* stream, Done done) {
  const auto training = static_cast<cudaStream_t>(stream);
  const CudaScope scope(*device_);
  absl::Status status = CheckNoneCaptures(scope, training);
  LaunchProbe(scope, std::move(status), std::move(op), std::move(done), training);
}

void CudaCopier::ProbeLater(ProbeOp op, Done done) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({.done = std::move(done), .probe = std::move(op)});
  }
  changed_.notify_all();
}

void CudaCopier::EnqueueProbe(Bucket bucket) {
  const CudaScope scope(*device_);
  LaunchProbe(scope, scope.status(), *std::move(bucket.probe), std::move(bucket.done),
              std::nullopt);
}

// `before`: whether all goes well so far. `holds`: the training stream, if those who write wait.
void CudaCopier::LaunchProbe(const CudaScope& scope, absl::Status before, ProbeOp op, Done done,
                             std::optional<cudaStream_t> holds) {
  absl::Status status = std::move(before);
  if (status.ok() && probes_ == nullptr) {
    status = absl::FailedPreconditionError("no room was made for samples on the device");
  }
  std::optional<CudaProbes::Pass> pass;
  if (status.ok()) {
    absl::StatusOr<CudaProbes::Pass> launched = probes_->Launch(scope, op, side_);
    status = launched.status();
    if (launched.ok()) pass = *launched;
  }
  if (status.ok() && holds) status = HoldWriters(scope, *holds);
  flights_->Launch(
      scope, std::move(status),
      [this, pass, digests = op.digests, done = std::move(done)](absl::Status status) mutable {
        if (pass) status.ok() ? probes_->Finish(*pass, digests) : probes_->Drop(*pass);
        { std::lock_guard lock(mutex_); }  // who looks before this waits already
        changed_.notify_all();
        Answer(std::move(done), std::move(status));
      });
}

}  // namespace unreft::snapshot
