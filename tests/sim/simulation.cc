#include "tests/sim/simulation.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/daemon_process.h"
#include "tests/sim/fault_plan.h"
#include "tests/sim/launcher.h"
#include "tests/sim/tight_memory.h"

namespace unreft::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kCalmMax = seconds(30);  // in which the job must be well again
constexpr uint64_t kWorldMax = 4;
constexpr uint64_t kTightOneIn = 2;
smp::NodeOptions DrawNodeOptions(Random& random) {
  smp::NodeOptions options;
  options.job = kJob;
  options.has_own_store = true;
  options.slots_per_rank = random.OneIn(4) ? 2 : 3;
  options.block_bytes = 64;
  options.populate_chunk_bytes = 4096 << random.Below(4);
  options.extras_bytes_min = 1024;
  options.memory_bytes_max = 1 << 20;
  options.restore_wait = seconds(3);
  options.version_deadline = milliseconds(200 + random.Below(400));
  options.scrub_interval = random.OneIn(2) ? Duration{} : Duration(milliseconds(100));
  options.replica_check_every = random.Below(3) * 3;
  options.checksum_task_blocks = static_cast<uint32_t>(8 << random.Below(5));
  Random beside = random;  // so that the other draws stay as they are
  if (beside.OneIn(kTightOneIn)) {
    options.extras_bytes_min = kExtrasBytesMost;
    options.memory_bytes_max = TightMemory(options, TensorsOf, {0}, kWorldMax);
  }
  return options;
}

TrainerOptions DrawTrainerOptions(Random& random) {
  TrainerOptions options;
  options.world = 1 + random.Below(kWorldMax);
  options.step_max = microseconds(200 + random.Below(6000));
  options.snapshot_every = 1 + random.Below(3) / 2;
  snapshot::ClientOptions& client = options.client;
  client.session = {milliseconds(2), milliseconds(40), milliseconds(200)};
  client.capture.fence_timeout = milliseconds(60);
  client.capture.bucket_bytes = uint64_t{128} << random.Below(6);
  client.capture.buckets_in_flight = static_cast<uint32_t>(1 + random.Below(3));
  client.capture.progress_every_bytes = uint64_t{64} << random.Below(8);
  client.any_world = true;
  client.connect_timeout = seconds(4);
  client.restore_timeout = seconds(6);
  client.register_timeout = seconds(4);
  options.device.copy_max = microseconds(20 + random.Below(400));
  Random beside = random;  // so that the other draws stay as they are
  options.counts_from_zero = beside.OneIn(2);
  return options;
}

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options),
        random_(options.seed ^ 0x5eed),
        world_(options.seed, options.verbose),
        machine_(world_, NodeSlot{0}),
        node_options_(DrawNodeOptions(random_)),
        plan_(Random(random_.Next()), options.faults ? options.faulty_time : Duration{-1}),
        launcher_({&machine_}, Random(random_.Next()), DrawTrainerOptions(random_)) {
    world_.bug = options.bug;
  }

  SimulationResult Run() {
    StartDaemon();
    launcher_.Start();
    RunUntil(options_.faulty_time, [] { return false; });
    BringCalm();
    WaitForProgress();
    WaitForLastRestart();
    End();
    return Result();
  }

 private:
  bool failed() const { return machine_.trace.failure().has_value(); }
  Duration now() const { return machine_.scheduler.now(); }

  // Runs until `done` holds or the time is there; false for the latter.
  template <typename Done>
  bool RunUntil(Duration end, Done done) {
    while (!failed() && now() < end) {
      if (done()) return true;
      if (!machine_.scheduler.RunOne()) break;
      AfterEvent();
    }
    return false;
  }

  void AfterEvent() {
    machine_.observer.AfterEvent();
    if (daemon_) daemon_->AfterEvent();
    if (daemon_ && !daemon_->failure().ok()) KillDaemon();  // whoever minds it starts it again
    launcher_.AfterEvent();
    if (machine_.observer.bytes() > node_options_.memory_bytes_max) {
      machine_.trace.Fail("the slots take {} bytes, memory_bytes_max is {}",
                          machine_.observer.bytes(), node_options_.memory_bytes_max);
    }
    if (machine_.scheduler.events_run() % 4096 == 0) machine_.observer.CheckAll();
    while (plan_.next() && now() >= plan_.next()->not_before && !calm_ &&
           (IsThere(plan_.next()->moment) || now() >= plan_.next()->not_after)) {
      const Fault fault = plan_.next()->fault;
      ++counts_["faults"];
      ++counts_[fmt::format("fault: {}", FaultName(fault))];
      machine_.trace.Add("fault: {}", FaultName(fault));
      Inject(fault);
      plan_.Advance(now());
    }
  }

  bool IsThere(Moment moment) {
    const smp::NodeState* state = daemon_ && daemon_->node() ? &daemon_->node()->state() : nullptr;
    const std::vector<TrainerProcess*> present = launcher_.Present();
    switch (moment) {
      case Moment::kNow:
        return true;
      case Moment::kCapturing:
        return std::ranges::any_of(present, [](auto* t) { return !t->device().idle(); });
      case Moment::kRestoring:
        return std::ranges::any_of(present, [](auto* t) { return !t->training(); });
      case Moment::kDeciding:
        return state != nullptr && state->timeline_closed;
      case Moment::kSealing:
        return state != nullptr && std::ranges::any_of(state->slots->All(), [](smp::Slot* slot) {
                 return slot->sealing;
               });
      case Moment::kStarting:
        return daemon_ != nullptr && daemon_->node() == nullptr;
    }
    return true;
  }

  // --- the daemon ---

  void StartDaemon() {
    const Duration work_max = microseconds(slow_pool_ ? 5000 : 100);
    daemon_ = std::make_unique<DaemonProcess>(machine_, node_options_, work_max);
  }

  void KillDaemon() {
    daemon_.reset();
    const Duration away = milliseconds(random_.Below(random_.OneIn(4) ? 500 : 20));
    const uint64_t life = ++daemon_lives_;
    machine_.kernel->Deliver(away, [this, life] {
      if (life == daemon_lives_ && daemon_ == nullptr) StartDaemon();
    });
  }

  // --- faults ---

  void Inject(Fault fault) {
    switch (fault) {
      case Fault::kKillTrainer:
        launcher_.KillOne();
        return;
      case Fault::kKillDaemon:
        return KillDaemon();
      case Fault::kKillBoth:
        launcher_.KillOne();
        return KillDaemon();
      case Fault::kCutConnections:
        return Cut();
      case Fault::kFailDiskWrites:
        return machine_.disk.FailWrites(static_cast<int>(1 + random_.Below(5)),
                                        absl::UnavailableError("the disk failed"));
      case Fault::kFillDisk:
        machine_.disk.set_bytes_max(random_.Below(400));
        return Later(milliseconds(random_.Below(500)),
                     [this] { machine_.disk.set_bytes_max(UINT64_MAX); });
      case Fault::kFlipBit:
        // What has rotted stays, and an exact budget has no room for it.
        if (node_options_.extras_bytes_min == kExtrasBytesMost) return;
        if (const std::optional<Version> version = machine_.observer.FlipBit(random_)) {
          machine_.history.OnDamaged(*version, now());
        }
        return;
      case Fault::kReboot:
        return Reboot();
      case Fault::kStallDevice:
        if (auto* trainer = launcher_.Any()) {
          trainer->device().Stall(milliseconds(random_.Below(120)));
        }
        return;
      case Fault::kFailDevice:
        if (auto* trainer = launcher_.Any()) trainer->device().FailNext(1);
        return;
      case Fault::kSuspendDaemon:
        return SuspendDaemon();
      case Fault::kSuspendTrainer:
        return launcher_.SuspendOne(DrawPause());
      case Fault::kFillMemory:
        return FillMemory();
      case Fault::kOtherWorld:
        return OtherWorld();
      case Fault::kSlowPool:
        slow_pool_ = !slow_pool_;
        return KillDaemon();
    }
  }

  void Later(Duration delay, Task task) { machine_.kernel->Deliver(delay, std::move(task)); }

  void Cut() {
    if (daemon_ && random_.OneIn(2)) return machine_.network.Cut(daemon_->executor());
    if (auto* trainer = launcher_.Any()) machine_.network.Cut(trainer->executor());
  }

  Duration DrawPause() { return milliseconds(random_.Below(random_.OneIn(3) ? 400 : 20)); }

  void SuspendDaemon() {
    if (daemon_ == nullptr) return;
    daemon_->executor().Suspend();
    Later(DrawPause(), [this, life = daemon_lives_] {
      if (daemon_ != nullptr && life == daemon_lives_) daemon_->executor().Resume();
    });
  }

  void Reboot() {
    launcher_.KillForReboot();
    KillDaemon();
    machine_.Reboot();
  }

  void FillMemory() {
    memory_was_short_ = true;
    machine_.FillMemory(random_.Below(20000));
    launcher_.KillOne();
    Later(milliseconds(100 + random_.Below(500)), [this] { machine_.FreeMemory(); });
  }

  void OtherWorld() {
    if (!machine_.history.committed()) return;
    launcher_.NextWorld(1 + random_.Below(kWorldMax));
    launcher_.KillOne();
  }

  // --- calm ---

  void BringCalm() {
    if (failed()) return;
    calm_ = true;
    machine_.trace.Add("calm");
    machine_.disk.set_bytes_max(UINT64_MAX);
    machine_.disk.FailWrites(0, absl::OkStatus());
    machine_.FreeMemory();
    // A daemon has the pool that it was started with.
    if (std::exchange(slow_pool_, false)) KillDaemon();
    // Who could not register trains unprotected until the next start.
    if (memory_was_short_) launcher_.KillOne();
  }

  void WaitForProgress() {
    const uint64_t before = machine_.history.commits();
    const bool well = RunUntil(now() + kCalmMax, [&] {
      return launcher_.Trains() && machine_.history.commits() > before + 3;
    });
    if (!well && !failed()) {
      DumpSlots();
      machine_.trace.Fail("no progress: {} commits in {} s of calm, trains: {}",
                          machine_.history.commits() - before,
                          std::chrono::duration_cast<seconds>(kCalmMax).count(),
                          launcher_.Trains());
    }
  }

  void DumpSlots() {
    if (daemon_ == nullptr || daemon_->node() == nullptr) return;
    for (smp::Slot* slot : daemon_->node()->state().slots->All()) {
      machine_.trace.Add("slot {} of rank {}: {} {} generation {} captured {} busy {} {}", slot->id,
                         slot->owner, smp::SlotPhaseName(slot->phase), slot->version,
                         slot->generation, slot->captured.has_value(), slot->InUseByPool(),
                         slot->problem);
    }
  }

  void WaitForLastRestart() {
    if (failed()) return;
    const uint64_t before = machine_.history.decisions();
    launcher_.KillOne();
    const bool well = RunUntil(now() + kCalmMax, [&] {
      return machine_.history.decisions() > before && launcher_.Trains();
    });
    if (!well && !failed()) machine_.trace.Fail("the last restart did not train again");
  }

  void End() {
    if (failed()) return;
    launcher_.KillAll();
    RunUntil(now() + seconds(10), [&] { return launcher_.Empty(); });
    RunUntil(now() + seconds(3), [] { return false; });
    if (failed()) return;
    machine_.observer.CheckAll();
    for (const std::string& name : machine_.memory->Names()) {
      if (name.find("control.") == std::string::npos) continue;
      machine_.trace.Fail("{} is left, its trainer is dead", name);
    }
  }

  SimulationResult Result() {
    SimulationResult result;
    result.failure = machine_.trace.failure();
    result.tail = {machine_.trace.tail().begin(), machine_.trace.tail().end()};
    result.hash = machine_.trace.hash() * 31 + machine_.scheduler.digest();
    result.counts = counts_;
    result.counts["events"] = machine_.scheduler.events_run();
    result.counts["commits"] = machine_.history.commits();
    result.counts["restores"] = machine_.history.restores();
    result.counts["attempts"] = launcher_.attempts();
    return result;
  }

  const SimulationOptions options_;
  Random random_;
  World world_;
  Machine machine_;
  const smp::NodeOptions node_options_;
  FaultPlan plan_;
  std::unique_ptr<DaemonProcess> daemon_;
  Launcher launcher_;
  bool calm_ = false;
  bool slow_pool_ = false;
  bool memory_was_short_ = false;
  uint64_t daemon_lives_ = 0;
  std::map<std::string, uint64_t> counts_{{"faults", 0}};
};

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace unreft::sim
