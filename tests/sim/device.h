// Device: the copy engine that one simulated trainer's snapshots go through.
//
// Like DMA it outlives its process: what was queued when the trainer is killed still lands, in two
// halves at times of their own, and only then may the process count as ended (docs/protocol.md,
// rule 5). Single-threaded; lives with the machine's kernel, and the trainer has a SimCopier onto
// it.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <memory>
#include <vector>

#include "snapshot/host_copier.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::sim {

struct DeviceOptions {
  Duration copy_max = std::chrono::microseconds(300);  // of a bucket
  bool says_done_early = false;                        // a planted bug
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  Device(SimExecutor& kernel, DeviceOptions options) : kernel_(kernel), options_(options) {}

  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Copies behind what was queued before; then `done`, in a turn of the kernel. `keep` holds the
  // sources and targets in memory until then.
  void Queue(std::vector<snapshot::CopyOp> ops, std::shared_ptr<void> keep, Done done);

  // Runs `idle` once nothing is queued any more.
  void WhenIdle(Task idle);
  bool idle() const { return queued_ == 0; }

  // --- faults ---
  // What is queued from now on lands this much later.
  void Stall(Duration delay) { due_ = std::max(due_, kernel_.scheduler().now()) + delay; }
  void FailNext(int copies) { failing_ = copies; }

 private:
  struct Copy;
  void End(const std::shared_ptr<Copy>& copy);

  SimExecutor& kernel_;
  const DeviceOptions options_;
  Duration due_{0};
  int queued_ = 0;
  int failing_ = 0;
  Task idle_;
};

// The trainer's end of its device.
class SimCopier final : public snapshot::HostMemoryCopier {
 public:
  // `memory` holds the trainer's tensors.
  SimCopier(SimExecutor& process, std::shared_ptr<Device> device, std::shared_ptr<void> memory)
      : process_(process), device_(std::move(device)), memory_(std::move(memory)) {}

  absl::Status CopyNow(std::span<const snapshot::CopyOp> ops) override;
  void CopyBucket(std::vector<snapshot::CopyOp> ops,
                  absl::AnyInvocable<void(absl::Status)> done) override;
  absl::Status Restore(std::span<const snapshot::CopyOp> ops) override;

 private:
  SimExecutor& process_;
  const std::shared_ptr<Device> device_;  // outlives the trainer
  const std::shared_ptr<void> memory_;    // shared with copies under way
};

}  // namespace unreft::sim
