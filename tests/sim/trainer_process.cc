#include "tests/sim/trainer_process.h"

#include <algorithm>
#include <utility>

#include "tests/sim/lying_connector.h"

namespace unreft::sim {
namespace {

constexpr Duration kSlack = std::chrono::milliseconds(200);

// Whether each row of the shard is as one of them has trained it.
bool IsTrainedBy(const std::vector<Author>& authors, const TensorSpec& spec,
                 std::span<const std::byte> bytes) {
  std::vector<std::vector<std::byte>> trained;
  for (const Author& author : authors)
    FillShard(trained.emplace_back(bytes.size()), 0, spec, author);
  for (size_t at = 0; at < bytes.size(); at += kRowBytes) {
    const size_t row = std::min(kRowBytes, bytes.size() - at);
    const bool is_trained = std::ranges::any_of(trained, [&](const auto& of_author) {
      return std::ranges::equal(bytes.subspan(at, row), std::span(of_author).subspan(at, row));
    });
    if (!is_trained) return false;
  }
  return true;
}

}  // namespace

void StepBarrier::Arrive(Rank rank, SimExecutor& process, std::weak_ptr<char> alive, Task go_on) {
  const uint64_t finished = ++finished_.at(rank.value);
  waiting_.push_back({finished, &process, std::move(alive), std::move(go_on)});
  const uint64_t slowest = *std::ranges::min_element(finished_);
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    if (waiting.finished > slowest + apart_max_) {
      waiting_.push_back(std::move(waiting));
      continue;
    }
    if (waiting.alive.expired()) continue;
    waiting.process->Deliver(scheduler_.RandomDelay(std::chrono::microseconds(50)),
                             std::move(waiting.go_on));
  }
}

TrainerProcess::TrainerProcess(Machine& machine, TrainerOptions options,
                               std::shared_ptr<StepBarrier> barrier,
                               absl::AnyInvocable<void(absl::Status)> on_exit)
    : machine_(machine),
      options_(std::move(options)),
      barrier_(std::move(barrier)),
      on_exit_(std::move(on_exit)),
      life_(machine.processes.Start()),
      executor_(
          machine.scheduler.NewExecutor(fmt::format("rank {}", options_.rank), machine.host())),
      segments_(*machine.memory),
      device_(std::make_shared<Device>(*machine.kernel, options_.device)),
      copier_(*executor_, device_, state_),
      connector_(
          PlantBug(machine, options_.rank,
                   machine.network.NewConnector(*executor_, kSocketPath, {.pid = life_.pid}))) {
  machine_.trace.Add("rank {} of {}, attempt {} (number {}): pid {} starts", options_.rank,
                     options_.world, options_.attempt, options_.told, life_.pid);
  executor_->Deliver(Duration(1), [this] { Start(); });
}

TrainerProcess::~TrainerProcess() { Kill(Duration{}); }

void TrainerProcess::Kill(Duration memory_lag) {
  if (executor_->killed()) return;
  machine_.trace.Add("rank {} of attempt {}: pid {} dies", options_.rank, options_.attempt,
                     life_.pid);
  executor_->Kill();
  alive_.reset();
  client_.reset();
  training_ = false;
  expected_.clear();
  Machine* machine = &machine_;
  auto end = [machine, life = life_, gone = gone_] {
    machine->processes.End(life);
    *gone = true;
  };
  if (machine_.bug == PlantedBug::kEndsTooEarly) {
    machine_.processes.End(life_);
    return device_->WhenIdle([gone = gone_] { *gone = true; });
  }
  device_->WhenIdle([machine, memory_lag, end]() mutable {
    machine->kernel->Deliver(memory_lag, std::move(end));
  });
}

void TrainerProcess::Expect(const char* what, Duration timeout) {
  expected_ = what;
  expected_by_ = machine_.scheduler.now() + timeout + kSlack;
}

void TrainerProcess::CheckDeadline() {
  if (executor_->suspended() || expected_.empty()) return;
  if (machine_.scheduler.now() < expected_by_) return;
  machine_.trace.Fail("rank {} of attempt {}: {} did not answer in time", options_.rank,
                      options_.attempt, expected_);
  expected_.clear();
}

void TrainerProcess::Suspend() {
  if (executor_->killed() || executor_->suspended()) return;
  executor_->Suspend();
  suspended_at_ = machine_.scheduler.now();
}

void TrainerProcess::Resume() {
  if (!executor_->suspended()) return;
  executor_->Resume();
  expected_by_ += machine_.scheduler.now() - suspended_at_;
}

void TrainerProcess::Exit(absl::Status status) {
  expected_.clear();
  machine_.trace.Add("rank {} of attempt {} gives up: {}", options_.rank, options_.attempt,
                     status.ToString());
  on_exit_(std::move(status));
}

// --- restore ---

void TrainerProcess::Start() {
  Hello identity;
  identity.job = kJob;
  identity.rank = options_.rank;
  identity.world = options_.world;
  identity.attempt = options_.told;
  identity.life = life_;
  identity.client_version = "sim";
  client_ = std::make_unique<snapshot::ClientActor>(*executor_, *connector_, segments_, copier_,
                                                    Random(machine_.scheduler.random().Next()),
                                                    std::move(identity), options_.client);
  client_->Start();
  Expect("connecting", options_.client.connect_timeout);
  client_->WhenConnected([this](absl::Status status) {
    if (!status.ok()) return Exit(std::move(status));
    Restore();
  });
}

void TrainerProcess::Restore() {
  Expect("the restore", options_.client.restore_timeout + options_.client.capture.fence_timeout);
  client_->RestoreBegin(
      [this](absl::StatusOr<snapshot::Restored> restored) { OnRestored(std::move(restored)); },
      options_.at_or_before);
}

void TrainerProcess::OnRestored(absl::StatusOr<snapshot::Restored> restored) {
  if (absl::IsDataLoss(restored.status()) &&
      restored.status().message().find("unrecoverable") != std::string::npos) {
    machine_.history.OnUnrecoverable(options_.attempt, machine_.observer.NewestWhole());
  }
  if (!restored.ok()) return Exit(restored.status());
  timeline_ = restored->timeline;
  step_ = restored->version.step;
  is_before_first_step_ = restored->fresh;
  state_->specs = machine_.tensors(options_.rank, options_.world);
  state_->bytes.clear();
  for (const TensorSpec& spec : state_->specs) {
    state_->bytes.emplace_back(ShardBytes(spec), std::byte{0xee});
  }
  machine_.history.OnToldRestored(options_.rank, options_.attempt, timeline_, restored->version,
                                  restored->source_world);
  if (restored->fresh) return Register();
  if (restored->source_world != options_.world) {
    return ReadExtrasOfOthers(restored->version, Rank{0}, restored->source_world);
  }
  CheckExtras(restored->version, options_.rank, restored->extras);
  ReadTensors(restored->version, /*is_reshaped=*/false);
}

void TrainerProcess::CheckExtras(Version version, Rank saved_by,
                                 const snapshot::StoredExtras& extras) {
  const std::optional<Author> author = machine_.history.AuthorOf(version, saved_by);
  if (author && extras == ExtrasOf(saved_by, *author)) return;
  machine_.trace.Fail("rank {}: the extras that rank {} saved with {} are others", options_.rank,
                      saved_by, version);
}

void TrainerProcess::ReadExtrasOfOthers(Version version, Rank from, uint64_t source_world) {
  if (from.value == source_world) return ReadTensors(version, /*is_reshaped=*/true);
  Expect("the extras", options_.client.restore_timeout);
  client_->RestoreExtras(
      from, [this, version, from, source_world](absl::StatusOr<snapshot::StoredExtras> extras) {
        if (!extras.ok()) return Exit(extras.status());
        CheckExtras(version, from, *extras);
        ReadExtrasOfOthers(version, Rank{from.value + 1}, source_world);
      });
}

void TrainerProcess::ReadTensors(Version version, bool is_reshaped) {
  Expect("the read", options_.client.restore_timeout);
  client_->RestoreRead(Bound(), [this, version, is_reshaped](absl::Status status) {
    if (!status.ok()) return Exit(std::move(status));
    CheckBytes(version, is_reshaped);
    client_->RestoreEnd();
    Register();
  });
}

// In the world that saved it a rank gets what it had itself, also where it went astray.
void TrainerProcess::CheckBytes(Version version, bool is_reshaped) {
  std::vector<Author> authors = machine_.history.AuthorsOf(version);
  if (!is_reshaped) {
    authors.clear();
    if (const auto author = machine_.history.AuthorOf(version, options_.rank)) {
      authors.push_back(*author);
    }
  }
  if (authors.empty()) return machine_.trace.Fail("{} was restored, nobody trained it", version);
  for (size_t i = 0; i < state_->specs.size(); ++i) {
    if (IsTrainedBy(authors, state_->specs[i], state_->bytes[i])) continue;
    machine_.trace.Fail("rank {}: tensor {} of {} has wrong bytes after the restore", options_.rank,
                        state_->specs[i].name, version);
  }
  machine_.trace.Add("rank {} of attempt {} has restored {}{}", options_.rank, options_.attempt,
                     version, is_reshaped ? ", in another world" : "");
}

std::vector<snapshot::BoundTensor> TrainerProcess::Bound() const {
  std::vector<snapshot::BoundTensor> bound;
  for (size_t i = 0; i < state_->specs.size(); ++i) {
    bound.push_back({state_->specs[i], state_->bytes[i].data()});
  }
  return bound;
}

// --- training ---

void TrainerProcess::Register() {
  Expect("the registration",
         options_.client.register_timeout + options_.client.capture.fence_timeout);
  client_->Register(Bound(), 512, [this](absl::Status status) {
    expected_.clear();
    if (!status.ok()) {
      machine_.trace.Add("rank {}: trains unprotected: {}", options_.rank, status.ToString());
    }
    registered_ = status.ok();
    training_ = true;
    Train();
  });
}

void TrainerProcess::Train() {
  // Where nothing holds them together some ranks are faster than others.
  const auto slower = options_.steps_apart_max == 0 ? 1 : 1 + options_.rank.value % 3;
  const Duration compute = machine_.scheduler.RandomDelay(options_.step_max) * slower;
  executor_->After(compute, [this] {
    if (barrier_ == nullptr) return FinishStep();
    barrier_->Arrive(options_.rank, *executor_, alive_, [this] { FinishStep(); });
  });
}

void TrainerProcess::FinishStep() {
  const bool forgets =
      machine_.bug == PlantedBug::kNoFence ||
      (machine_.bug == PlantedBug::kForgetsFence && machine_.scheduler.random().OneIn(4));
  auto go_on = [this, forgets] {
    expected_.clear();
    const bool is_first = std::exchange(is_before_first_step_, false);
    if (!is_first || !options_.counts_from_zero) step_.value += 1;
    if (!device_->idle() && !forgets) {
      machine_.trace.Fail("rank {}: the fence returned while copies are under way", options_.rank);
    }
    Write(Here());
    if (step_.value % options_.snapshot_every != 0) return Train();
    executor_->RunOnThread(machine_.scheduler.RandomDelay(std::chrono::microseconds(20)),
                           [this] { Snapshot(); });
  };
  if (forgets) return go_on();
  Expect("the fence", options_.client.capture.fence_timeout);
  client_->FenceThen(std::move(go_on));
}

Author TrainerProcess::Here() const {
  return {{timeline_, step_},
          options_.attempt,
          machine_.history.SaltOf(options_.attempt, options_.rank)};
}

void TrainerProcess::Write(const Author& author) {
  for (size_t i = 0; i < state_->specs.size(); ++i) {
    FillShard(state_->bytes[i], 0, state_->specs[i], author);
  }
}

void TrainerProcess::Snapshot() {
  const std::vector<std::byte> extras = ExtrasOf(options_.rank, Here());
  const absl::StatusOr<snapshot::SnapshotResult> result = client_->Snapshot(step_, extras, nullptr);
  if (result.ok() && result->outcome == snapshot::Outcome::kStarted) {
    machine_.history.OnSnapshotStarted({timeline_, step_}, options_.attempt, options_.world);
    // What is volatile may change as soon as Snapshot has returned.
    for (size_t i = 0; i < state_->specs.size(); ++i) {
      if (state_->specs[i].is_volatile) std::ranges::fill(state_->bytes[i], std::byte{0x77});
    }
  } else {
    refused_ += !result.ok();
    machine_.trace.Add("rank {}: step {}: {}", options_.rank, step_,
                       result.ok() ? result->reason : result.status().ToString());
  }
  executor_->Post([this] { Train(); });
}

}  // namespace unreft::sim
