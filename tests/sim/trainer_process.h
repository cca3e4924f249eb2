// TrainerProcess: one rank of one attempt on a simulated machine: a training loop around the real
// client actor.
//
//   connect ─▶ restore ─▶ register ─▶ [ compute ─▶ barrier ─▶ fence ─▶ new state ─▶ snapshot ] ...
//
// It fails the trace when a restore gives other bytes than were trained, or a call of the client
// does not answer by its deadline.
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>
#include <vector>

#include "snapshot/client_actor.h"
#include "tests/sim/device.h"
#include "tests/sim/machine.h"
#include "tests/sim/model.h"

namespace unreft::sim {

// All ranks of an attempt finish a step together, as the gradient's all-reduce makes them; or none
// is more than `apart_max` steps ahead of another.
class StepBarrier {
 public:
  StepBarrier(SimScheduler& scheduler, uint64_t world, uint64_t apart_max)
      : scheduler_(scheduler), apart_max_(apart_max), finished_(world) {}
  // `alive` dies with the process, which may be gone when the others arrive.
  void Arrive(Rank rank, SimExecutor& process, std::weak_ptr<char> alive, Task go_on);

 private:
  SimScheduler& scheduler_;
  const uint64_t apart_max_;
  std::vector<uint64_t> finished_;  // steps, by rank
  struct Waiting {
    uint64_t finished;
    SimExecutor* process;
    std::weak_ptr<char> alive;
    Task go_on;
  };
  std::vector<Waiting> waiting_;
};

struct TrainerOptions {
  Rank rank;
  uint64_t world = 0;
  Attempt attempt;
  Attempt told;  // what it calls itself, as other attempts may have done
  Duration step_max = std::chrono::milliseconds(4);
  uint64_t steps_apart_max = 0;  // of any two ranks
  uint64_t snapshot_every = 1;
  bool counts_from_zero = false;  // its first step is step 0, not 1
  std::optional<Step> at_or_before;  // the newest step that it restores; none: any
  snapshot::ClientOptions client;
  DeviceOptions device;
};

class TrainerProcess {
 public:
  // `on_exit` runs in a turn of the process that ends by itself: its restore failed.
  TrainerProcess(Machine& machine, TrainerOptions options, std::shared_ptr<StepBarrier> barrier,
                 absl::AnyInvocable<void(absl::Status)> on_exit);
  ~TrainerProcess();

  // kill -9. Its copies still land; then its life ends, `memory_lag` later.
  void Kill(Duration memory_lag);
  bool killed() const { return executor_->killed(); }
  // Nothing of it is left, so it may be destroyed.
  bool gone() const { return *gone_; }

  // From now on it trains alone, as a process that missed the end of its attempt.
  void RunAway() { barrier_ = nullptr; }
  void Suspend();
  void Resume();
  // Whether a call of the client is late.
  void CheckDeadline();

  SimExecutor& executor() { return *executor_; }
  Device& device() { return *device_; }
  const Machine& machine() const { return machine_; }
  Rank rank() const { return options_.rank; }
  Attempt attempt() const { return options_.attempt; }
  uint64_t step() const { return step_.value; }
  // Snapshots that were not skipped, but failed: of extras that have outgrown their region, say.
  uint64_t refused() const { return refused_; }
  bool training() const { return training_; }
  Timeline timeline() const { return timeline_; }
  // Its tensors are registered, or were refused, and it trains on without protection.
  bool registered() const { return registered_; }
  // What it was told that stands in the way of commits.
  std::string told() const { return client_ == nullptr ? "" : client_->told(); }

 private:
  struct State {
    std::vector<TensorSpec> specs;
    std::vector<std::vector<std::byte>> bytes;
  };

  void Start();
  void Restore();
  void OnRestored(absl::StatusOr<snapshot::Restored> restored);
  void CheckExtras(Version version, Rank saved_by, const snapshot::StoredExtras& extras);
  // Of the ranks from that one on that have saved the version, and then the tensors.
  void ReadExtrasOfOthers(Version version, Rank from, uint64_t source_world);
  void ReadTensors(Version version, bool is_reshaped);
  void CheckBytes(Version version, bool is_reshaped);
  void Register();
  void Train();
  void FinishStep();
  void Snapshot();
  void Write(const Author& author);
  void Exit(absl::Status status);
  // The call under way must answer within `timeout`.
  void Expect(const char* what, Duration timeout);
  std::vector<snapshot::BoundTensor> Bound() const;
  Author Here() const;

  Machine& machine_;
  const TrainerOptions options_;
  std::shared_ptr<StepBarrier> barrier_;  // shared by the ranks of the attempt
  absl::AnyInvocable<void(absl::Status)> on_exit_;
  const ProcessLife life_;
  std::unique_ptr<SimExecutor> executor_;
  FakeSegmentStore segments_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // shared with the device
  const std::shared_ptr<Device> device_;  // outlives the process by its copies
  SimCopier copier_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<snapshot::ClientActor> client_;
  const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // shared with the kernel

  std::shared_ptr<char> alive_ = std::make_shared<char>();  // until it is killed

  Timeline timeline_;
  uint64_t refused_ = 0;
  Step step_;
  bool training_ = false;
  bool registered_ = false;
  bool is_before_first_step_ = false;
  std::string expected_;
  Duration expected_by_{0};
  Duration suspended_at_{0};
};

}  // namespace unreft::sim
