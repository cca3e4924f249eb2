#include "tests/sim/cluster/cluster_simulation.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "tests/sim/cluster/cluster_observer.h"
#include "tests/sim/cluster/guard_spoiler.h"
#include "tests/sim/daemon_process.h"
#include "tests/sim/launcher.h"

namespace unreft::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kCalmMax = seconds(40);  // in which the job must be well again

constexpr std::pair<uint32_t, uint32_t> kShapes[] = {{2, 1}, {2, 2}, {3, 2}, {4, 2}};

struct ClusterOptions {
  smp::NodeOptions node;
  std::vector<uint64_t> ranks;  // of each node
  uint64_t world = 0;
};

ClusterOptions DrawOptions(Random& random) {
  ClusterOptions options;
  const auto [k, m] = kShapes[random.Below(std::size(kShapes))];
  smp::NodeOptions& node = options.node;
  node.job = kJob;
  node.slots_per_rank = random.OneIn(4) ? 2 : 3;
  node.block_bytes = 64;
  node.populate_chunk_bytes = 4096 << random.Below(4);
  node.extras_bytes_min = 1024;
  node.memory_bytes_max = 1 << 20;
  node.restore_wait = seconds(8);
  node.version_deadline = milliseconds(400 + random.Below(400));
  node.scrub_interval = Duration{};
  node.replica_check_every = 0;
  node.checksum_task_blocks = static_cast<uint32_t>(8 << random.Below(5));
  node.nodes = k + m + random.Below(random.OneIn(3) ? k + m + 2 : 3);
  node.data_chunks = k;
  node.parity_chunks = m;
  node.presence_ttl = seconds(1);
  node.lost_grace = seconds(1 + random.Below(2));
  node.report_interval = milliseconds(50 + random.Below(100));
  node.protect_window = static_cast<uint32_t>(1 + random.Below(6));
  node.read_timeout = milliseconds(300);
  node.read_retry = milliseconds(5);
  node.call_timeout = milliseconds(200);
  node.verify_timeout = milliseconds(500);
  node.restore_staging_bytes = 4096 << random.Below(4);
  for (uint64_t slot = 0; slot < node.nodes; ++slot) {
    // Once in a while a node without ranks: it only keeps what is of others.
    options.ranks.push_back(slot > 0 && random.OneIn(8) ? 0 : 1 + random.Below(2));
    options.world += options.ranks.back();
  }
  return options;
}

TrainerOptions DrawTrainerOptions(Random& random, uint64_t world) {
  TrainerOptions options;
  options.world = world;
  options.step_max = milliseconds(2 + random.Below(20));
  options.snapshot_every = 1 + random.Below(4);
  snapshot::ClientOptions& client = options.client;
  client.session = {milliseconds(5), milliseconds(80), milliseconds(400)};
  client.capture.fence_timeout = milliseconds(60);
  client.capture.bucket_bytes = uint64_t{256} << random.Below(5);
  client.capture.buckets_in_flight = static_cast<uint32_t>(1 + random.Below(3));
  client.capture.progress_every_bytes = uint64_t{256} << random.Below(6);
  client.connect_timeout = seconds(6);
  client.restore_timeout = seconds(16);
  client.register_timeout = seconds(6);
  options.device.copy_max = microseconds(20 + random.Below(200));
  return options;
}

enum class ClusterFault {
  kKillTrainer,
  kKillDaemon,
  kKillLeader,
  kKillHostProcesses,
  kKillStore,
  kLoseMessages,
  kSlowMessages,
  kBlockOneWay,
  kIsolate,
  kCutOffFromStore,
  kLoseKvAnswers,
  kSuspendDaemon,
  kSuspendLeader,
  kDestroyNodes,
};

struct Kind {
  ClusterFault fault;
  std::string_view name;
  uint64_t weight;
  uint64_t one_in;  // how many runs have it
};

constexpr Kind kKinds[] = {
    {ClusterFault::kKillTrainer, "kill a trainer", 3, 1},
    {ClusterFault::kKillDaemon, "kill a daemon", 3, 1},
    {ClusterFault::kKillLeader, "kill the leader's daemon", 2, 2},
    {ClusterFault::kKillHostProcesses, "kill a daemon and a trainer", 2, 2},
    {ClusterFault::kKillStore, "kill the meta store", 1, 3},
    {ClusterFault::kLoseMessages, "lose messages", 2, 3},
    {ClusterFault::kSlowMessages, "delay and double messages", 2, 3},
    {ClusterFault::kBlockOneWay, "block one way", 2, 3},
    {ClusterFault::kIsolate, "isolate a node", 1, 3},
    {ClusterFault::kCutOffFromStore, "cut a node off from the store", 2, 3},
    {ClusterFault::kLoseKvAnswers, "lose answers of the store", 2, 3},
    {ClusterFault::kSuspendDaemon, "suspend a daemon", 2, 3},
    {ClusterFault::kSuspendLeader, "suspend the leader", 2, 3},
    {ClusterFault::kDestroyNodes, "destroy nodes", 4, 2},
};

class ClusterSimulation {
 public:
  explicit ClusterSimulation(const SimulationOptions& options)
      : options_(options),
        random_(options.seed ^ 0xc1a5),
        world_(options.seed, options.verbose, ShardedTensorsOf),
        cluster_options_(DrawOptions(random_)),
        network_(world_.scheduler),
        store_(world_.scheduler, random_.Next()),
        seams_{store_, network_} {
    world_.bug = options.bug;
    MachinesBySlot by_slot;
    std::vector<Machine*> homes;
    for (uint64_t slot = 0; slot < cluster_options_.node.nodes; ++slot) {
      machines_.push_back(std::make_unique<Machine>(world_, NodeSlot{slot}));
      by_slot[NodeSlot{slot}] = machines_.back().get();
      homes.insert(homes.end(), cluster_options_.ranks[slot], machines_.back().get());
    }
    spoiler_ = std::make_unique<GuardSpoiler>(world_, by_slot);
    observer_ = std::make_unique<ClusterObserver>(world_, std::move(by_slot));
    launcher_ = std::make_unique<Launcher>(std::move(homes), Random(random_.Next()),
                                           DrawTrainerOptions(random_, cluster_options_.world));
    daemons_.resize(machines_.size());
    lives_.resize(machines_.size());
    for (const Kind& kind : kKinds) {
      if (random_.OneIn(kind.one_in)) kinds_.insert(kinds_.end(), kind.weight, &kind);
    }
    pause_max_ = milliseconds(100 + random_.Below(500));
  }

  ~ClusterSimulation() {
    launcher_.reset();
    daemons_.clear();
  }

  SimulationResult Run() {
    const smp::NodeOptions& node = cluster_options_.node;
    world_.trace.Add("{} nodes, RS({},{}), {} ranks", node.nodes, node.data_chunks,
                     node.parity_chunks, cluster_options_.world);
    for (size_t slot = 0; slot < machines_.size(); ++slot) StartDaemon(slot);
    launcher_->Start();
    if (options_.faults) PlanFault();
    RunUntil(options_.faulty_time, [] { return false; });
    BringCalm();
    WaitForProgress();
    WaitForLastRestart();
    End();
    return Result();
  }

 private:
  bool failed() const { return world_.trace.failure().has_value(); }
  Duration now() const { return world_.scheduler.now(); }
  SimExecutor& kernel() { return *machines_[0]->kernel; }

  template <typename Done>
  bool RunUntil(Duration end, Done done) {
    while (!failed() && now() < end) {
      if (done()) return true;
      if (!world_.scheduler.RunOne()) break;
      AfterEvent();
    }
    return false;
  }

  void AfterEvent() {
    for (size_t slot = 0; slot < machines_.size(); ++slot) {
      machines_[slot]->observer.AfterEvent();
      if (daemons_[slot] != nullptr && !daemons_[slot]->failure().ok()) KillDaemon(slot);
    }
    spoiler_->AfterEvent();
    observer_->AfterEvent(daemons_);
    if (world_.scheduler.events_run() % 1024 == 0) CheckGuardCounts();
    launcher_->AfterEvent();
  }

  // Those that fit, and those that growths of the slabs have made too small, until they are old.
  void CheckGuardCounts() {
    const uint64_t guards_max = 3 * cluster_options_.node.slots_per_rank;
    for (const auto& machine : machines_) {
      const auto guards =
          std::ranges::count_if(machine->memory->Names(),
                                [prefix = machine->prefix() + "guard"](const std::string& name) {
                                  return name.starts_with(prefix);
                                });
      if (static_cast<uint64_t>(guards) <= guards_max) continue;
      world_.trace.Fail("node {} has {} guards, {} are enough", machine->slot, guards, guards_max);
    }
  }

  // --- the daemons ---

  void StartDaemon(size_t slot) {
    smp::NodeOptions options = cluster_options_.node;
    options.node = NodeSlot{slot};
    daemons_[slot] = std::make_unique<DaemonProcess>(*machines_[slot], std::move(options),
                                                     microseconds(100), &seams_);
  }

  void KillDaemon(size_t slot) {
    // The network and the store know the process by its address, which another may have next.
    if (daemons_[slot] != nullptr) store_.Mend(daemons_[slot]->executor());
    daemons_[slot].reset();
    const Duration away = milliseconds(random_.Below(random_.OneIn(4) ? 4000 : 50));
    const uint64_t life = ++lives_[slot];
    kernel().Deliver(calm_ ? milliseconds(5) : away, [this, slot, life] {
      if (life == lives_[slot] && daemons_[slot] == nullptr) StartDaemon(slot);
    });
  }

  size_t AnySlot() { return random_.Below(machines_.size()); }

  size_t LeaderSlot() {
    for (size_t slot = 0; slot < daemons_.size(); ++slot) {
      smp::Node* node = daemons_[slot] == nullptr ? nullptr : daemons_[slot]->node();
      if (node != nullptr && node->member()->leads()) return slot;
    }
    return AnySlot();
  }

  // --- faults ---

  void Later(Duration delay, Task task) { kernel().Deliver(delay, std::move(task)); }

  void PlanFault() {
    Later(Duration(random_.Below(pause_max_.count())), [this] {
      if (calm_) return;
      const Kind& kind = *kinds_[random_.Below(kinds_.size())];
      ++faults_;
      world_.trace.Add("fault: {}", kind.name);
      Inject(kind.fault);
      PlanFault();
    });
  }

  Duration DrawWhile() { return milliseconds(random_.Below(random_.OneIn(3) ? 3000 : 200)); }

  std::string Address(size_t slot) { return fmt::format("node{}", slot); }

  void Inject(ClusterFault fault) {
    const size_t slot = AnySlot();
    switch (fault) {
      case ClusterFault::kKillTrainer:
        launcher_->KillOne();
        return;
      case ClusterFault::kKillDaemon:
        return KillDaemon(slot);
      case ClusterFault::kKillLeader:
        return KillDaemon(LeaderSlot());
      case ClusterFault::kKillHostProcesses:
        launcher_->KillOne();
        return KillDaemon(slot);
      case ClusterFault::kKillStore:
        return KillStore();
      case ClusterFault::kLoseMessages:
        network_.options().lose_one_in = static_cast<uint32_t>(3 + random_.Below(30));
        network_.options().cut_one_in = static_cast<uint32_t>(3 + random_.Below(30));
        return Later(DrawWhile(), [this] {
          network_.options().lose_one_in = 0;
          network_.options().cut_one_in = 0;
        });
      case ClusterFault::kSlowMessages:
        network_.options().slow_one_in = static_cast<uint32_t>(2 + random_.Below(20));
        network_.options().duplicate_one_in = static_cast<uint32_t>(2 + random_.Below(20));
        return Later(DrawWhile(), [this] {
          network_.options().slow_one_in = 0;
          network_.options().duplicate_one_in = 0;
        });
      case ClusterFault::kBlockOneWay: {
        const size_t to = AnySlot();
        network_.Block(Address(slot), Address(to));
        return Later(DrawWhile(),
                     [this, slot, to] { network_.Unblock(Address(slot), Address(to)); });
      }
      case ClusterFault::kIsolate:
        network_.Isolate(Address(slot));
        return Later(DrawWhile(), [this, slot] { network_.Rejoin(Address(slot)); });
      case ClusterFault::kCutOffFromStore:
        return CutOff(random_.OneIn(2) ? LeaderSlot() : slot);
      case ClusterFault::kLoseKvAnswers:
        store_.set_lose_one_in(2 + random_.Below(20));
        return Later(DrawWhile(), [this] { store_.set_lose_one_in(0); });
      case ClusterFault::kSuspendDaemon:
        return Suspend(slot);
      case ClusterFault::kSuspendLeader:
        return Suspend(LeaderSlot());
      case ClusterFault::kDestroyNodes:
        return DestroyNodes();
    }
  }

  void KillStore() {
    if (!store_.running()) return;
    store_.Kill();
    Later(DrawWhile(), [this] {
      if (!store_.running()) store_.Restart();
    });
  }

  void CutOff(size_t slot) {
    if (daemons_[slot] == nullptr) return;
    store_.CutOff(daemons_[slot]->executor());
    Later(DrawWhile(), [this, slot, life = lives_[slot]] {
      if (life == lives_[slot]) store_.Mend(daemons_[slot]->executor());
    });
  }

  // As many as a group must stand, and not before the last loss is made good.
  void DestroyNodes() {
    if (!observer_->is_protected()) return;
    const uint64_t count = 1 + random_.Below(cluster_options_.node.parity_chunks);
    for (uint64_t i = 0; i < count; ++i) {
      const size_t slot = AnySlot();
      world_.trace.Add("node {} is destroyed", slot);
      launcher_->KillOn(*machines_[slot]);
      KillDaemon(slot);
      machines_[slot]->Replace();
      observer_->OnDestroyed(NodeSlot{slot});
    }
  }

  void Suspend(size_t slot) {
    if (daemons_[slot] == nullptr) return;
    daemons_[slot]->executor().Suspend();
    Later(DrawWhile(), [this, slot, life = lives_[slot]] {
      if (life == lives_[slot]) daemons_[slot]->executor().Resume();
    });
  }

  // --- calm ---

  void BringCalm() {
    if (failed()) return;
    calm_ = true;
    world_.trace.Add("calm");
    SimTransportOptions& options = network_.options();
    options.lose_one_in = options.cut_one_in = 0;
    options.slow_one_in = options.duplicate_one_in = 0;
    store_.set_lose_one_in(0);
    if (!store_.running()) store_.Restart();
    for (size_t slot = 0; slot < machines_.size(); ++slot) {
      network_.Rejoin(Address(slot));
      for (size_t to = 0; to < machines_.size(); ++to) network_.Unblock(Address(slot), Address(to));
      if (daemons_[slot] == nullptr) {
        ++lives_[slot];
        StartDaemon(slot);
      } else {
        store_.Mend(daemons_[slot]->executor());
        daemons_[slot]->executor().Resume();
      }
    }
    // Who could not register trains unprotected until the next start.
    if (options_.faults) launcher_->KillOne();
  }

  void WaitForProgress() {
    const uint64_t before = observer_->commits_checked();
    const bool well = RunUntil(now() + kCalmMax, [&] {
      return launcher_->Trains() && observer_->commits_checked() > before + 3;
    });
    if (!well && !failed()) {
      Dump();
      world_.trace.Fail("no progress: {} commits in {} s of calm, trains: {}",
                        observer_->commits_checked() - before,
                        std::chrono::duration_cast<seconds>(kCalmMax).count(), launcher_->Trains());
    }
  }

  void Dump() {
    for (const auto& daemon : daemons_) {
      if (daemon == nullptr || daemon->node() == nullptr) continue;
      const smp::NodeState& state = daemon->node()->state();
      const meta::JobState& job = daemon->node()->member()->job();
      world_.trace.Add("node {}: session {}, committed {}, timeline {}, leads {}, store {}",
                       state.options.node, state.record->session(), state.record->committed(),
                       state.record->chain().newest(), daemon->node()->member()->leads(),
                       daemon->node()->member()->store_status().ToString());
      std::string present;
      for (const auto& [slot, presence] : job.present) {
        present += fmt::format(" {} (session {})", slot, presence.session());
      }
      world_.trace.Add("  leader {}, view {}, present:{}", job.leader.value.slot(),
                       job.view.value.number(), present);
      world_.trace.Add("  timeline {}", job.timeline.value.ShortDebugString());
      for (const smp::Slot* slot : state.slots->All()) {
        world_.trace.Add("  slot {} of rank {}: {} {} captured {} sealing {} reads {} {}", slot->id,
                         slot->owner, smp::SlotPhaseName(slot->phase), slot->version,
                         slot->captured.has_value(), slot->sealing, slot->reads, slot->problem);
      }
    }
    for (const auto& machine : machines_) {
      for (const GuardLook& guard : LookAtGuards(*machine)) {
        world_.trace.Add("node {}: guard {} of state {} of {}", machine->slot, guard.name,
                         static_cast<int>(guard.state), guard.version);
      }
    }
  }

  void WaitForLastRestart() {
    if (failed()) return;
    const uint64_t before = observer_->decisions();
    launcher_->KillOne();
    const bool well = RunUntil(
        now() + kCalmMax, [&] { return observer_->decisions() > before && launcher_->Trains(); });
    if (!well && !failed()) Dump(), world_.trace.Fail("the last restart did not train again");
  }

  void End() {
    if (failed()) return;
    launcher_->KillAll();
    RunUntil(now() + seconds(10), [&] { return launcher_->Empty(); });
    for (const auto& machine : machines_) machine->observer.CheckAll();
  }

  SimulationResult Result() {
    SimulationResult result;
    result.failure = world_.trace.failure();
    result.tail = {world_.trace.tail().begin(), world_.trace.tail().end()};
    result.hash = world_.trace.hash() * 31 + world_.scheduler.digest();
    result.events = world_.scheduler.events_run();
    result.commits = observer_->commits_checked();
    result.restores = world_.history.restores();
    result.attempts = launcher_->attempts();
    result.faults = faults_;
    result.rebuilt = observer_->slabs_lost();
    return result;
  }

  const SimulationOptions options_;
  Random random_;
  World world_;
  const ClusterOptions cluster_options_;
  SimNetwork network_;
  FakeKvStore store_;
  ClusterSeams seams_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::unique_ptr<GuardSpoiler> spoiler_;
  std::unique_ptr<ClusterObserver> observer_;
  std::vector<std::unique_ptr<DaemonProcess>> daemons_;
  std::vector<uint64_t> lives_;
  std::unique_ptr<Launcher> launcher_;
  std::vector<const Kind*> kinds_;
  Duration pause_max_{0};
  bool calm_ = false;
  uint64_t faults_ = 0;
};

}  // namespace

SimulationResult SimulateCluster(const SimulationOptions& options) {
  return ClusterSimulation(options).Run();
}

}  // namespace unreft::sim
