#include "tests/sim/cluster/cluster.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "tests/sim/cluster/group_checker.h"

namespace unreft::sim {
namespace {

// What is looked at now and then only: bounds, and deadlines with slack.
constexpr uint64_t kBoundsEvery = 1024;
constexpr uint64_t kDeadlinesEvery = 16;

}  // namespace

Cluster::Cluster(const SimulationOptions& options, Random random)
    : options_(DrawClusterOptions(random)),
      world_(options.seed, options.verbose, options_.tensors),
      network_(world_.scheduler),
      store_(world_.scheduler, random.Next()),
      seams_{store_, network_},
      kernel_(world_.scheduler.NewExecutor("cluster")) {
  world_.bug = options.bug;
  MachinesBySlot by_slot;
  std::vector<Machine*> homes;
  for (uint64_t slot = 0; slot < options_.node.nodes; ++slot) {
    machines_.push_back(std::make_unique<Machine>(world_, NodeSlot{slot}));
    by_slot[NodeSlot{slot}] = machines_.back().get();
    homes.insert(homes.end(), options_.ranks[slot], machines_.back().get());
  }
  spoiler_ = std::make_unique<GuardSpoiler>(world_, by_slot);
  observer_ = std::make_unique<ClusterObserver>(world_, std::move(by_slot));
  store_observer_ = std::make_unique<StoreObserver>(
      world_, store_, options_.node.nodes, options_.trainer.world,
      [this](const SimExecutor& process) { return WhoIs(process); });
  launcher_ = std::make_unique<Launcher>(std::move(homes), Random(random.Next()), options_.trainer);
  daemons_.resize(machines_.size());
  lives_.resize(machines_.size());
}

Cluster::~Cluster() {
  launcher_.reset();
  daemons_.clear();
}

void Cluster::Start() {
  const smp::NodeOptions& node = options_.node;
  trace().Add("{} nodes, RS({},{}), {} ranks", node.nodes, node.data_chunks, node.parity_chunks,
              options_.trainer.world);
  for (size_t slot = 0; slot < size(); ++slot) StartDaemon(slot);
  launcher_->Start();
}

void Cluster::Later(Duration delay, Task task) { kernel_->Deliver(delay, std::move(task)); }

// --- looking on ---

bool Cluster::RunOne() {
  if (failed() || !world_.scheduler.RunOne()) return false;
  LookOn();
  return !failed();
}

// An event changes the memory and the processes of its host alone.
void Cluster::LookOn() {
  if (const uint64_t host = world_.scheduler.last_host(); host != 0) {
    const size_t slot = host - 1;
    machines_[slot]->observer.AfterEvent();
    if (daemon(slot) != nullptr && !daemon(slot)->failure().ok()) {
      KillDaemon(slot, std::chrono::milliseconds(50));  // whoever minds it starts it again
    }
    spoiler_->AfterEvent();
    if (daemon(slot) != nullptr) observer_->AfterEvent(*daemon(slot));
  } else {
    store_observer_->AfterEvent();
  }
  const uint64_t events = world_.scheduler.events_run();
  if (events % kDeadlinesEvery == 0) launcher_->AfterEvent();
  if (events % kBoundsEvery == 0) CheckGuardCounts();
}

std::optional<PresenceRecord> Cluster::WhoIs(const SimExecutor& process) const {
  for (const auto& daemon : daemons_) {
    if (daemon == nullptr || &daemon->executor() != &process || daemon->node() == nullptr) continue;
    const smp::NodeRecord& record = *daemon->node()->state().record;
    PresenceRecord presence;
    presence.set_slot(daemon->node()->state().options.node.value);
    presence.set_session(record.session().value);
    const RandomId incarnation = record.incarnation();
    presence.set_incarnation({incarnation.begin(), incarnation.end()});
    return presence;
  }
  return std::nullopt;
}

// Those that fit, and those that growths of the slabs have made too small, until they are old.
void Cluster::CheckGuardCounts() {
  const uint64_t guards_max = 3 * options_.node.slots_per_rank;
  for (const auto& machine : machines_) {
    const auto guards =
        std::ranges::count_if(machine->memory->Names(),
                              [prefix = machine->prefix() + "guard"](const std::string& name) {
                                return name.starts_with(prefix);
                              });
    if (static_cast<uint64_t>(guards) <= guards_max) continue;
    trace().Fail("node {} has {} guards, {} are enough", machine->slot, guards, guards_max);
  }
}

// --- nodes ---

void Cluster::StartDaemon(size_t slot) {
  smp::NodeOptions options = options_.node;
  options.node = NodeSlot{slot};
  ++lives_[slot];
  daemons_[slot] = std::make_unique<DaemonProcess>(*machines_[slot], std::move(options),
                                                   std::chrono::microseconds(100), &seams_);
}

void Cluster::KillDaemon(size_t slot, Duration away) {
  // The network and the store know the process by its address, which another may have next.
  if (daemons_[slot] != nullptr) store_.Mend(daemons_[slot]->executor());
  daemons_[slot].reset();
  machines_[slot]->observer.AfterEvent();
  const uint64_t life = ++lives_[slot];
  Later(away, [this, slot, life] {
    if (life == lives_[slot] && daemons_[slot] == nullptr) StartDaemon(slot);
  });
}

void Cluster::Destroy(size_t slot, Duration away) {
  trace().Add("node {} is destroyed", slot);
  launcher_->KillOn(*machines_[slot]);
  KillDaemon(slot, away);
  machines_[slot]->Replace();
  observer_->OnDestroyed(NodeSlot{slot});
  Count("nodes destroyed");
}

std::optional<size_t> Cluster::LeaderSlot() {
  for (size_t slot = 0; slot < size(); ++slot) {
    smp::Node* node = daemons_[slot] == nullptr ? nullptr : daemons_[slot]->node();
    if (node != nullptr && node->member()->leads()) return slot;
  }
  return std::nullopt;
}

// --- for a failure ---

void Cluster::Dump() {
  for (const auto& daemon : daemons_) {
    if (daemon == nullptr || daemon->node() == nullptr) continue;
    const smp::NodeState& state = daemon->node()->state();
    const meta::JobState& job = daemon->node()->member()->job();
    trace().Add("node {}: session {}, committed {}, timeline {}, leads {}, store {}",
                state.options.node, state.record->session(), state.record->committed(),
                state.record->chain().newest(), daemon->node()->member()->leads(),
                daemon->node()->member()->store_status().ToString());
    std::string present;
    for (const auto& [slot, presence] : job.present) {
      present += fmt::format(" {} (session {})", slot, presence.session());
    }
    trace().Add("  store {} at {}, leader {}, view {}, present:{}",
                absl::BytesToHexString(job.store_id), job.revision, job.leader.value.slot(),
                job.view.value.number(), present);
    trace().Add("  timeline {}", job.timeline.value.ShortDebugString());
    for (const smp::Slot* slot : state.slots->All()) {
      trace().Add("  slot {} of rank {}: {} {} captured {} sealing {} reads {} {}", slot->id,
                  slot->owner, smp::SlotPhaseName(slot->phase), slot->version,
                  slot->captured.has_value(), slot->sealing, slot->reads, slot->problem);
    }
  }
  for (const auto& machine : machines_) {
    for (const GuardLook& guard : LookAtGuards(*machine)) {
      trace().Add("node {}: guard {} of state {} of {}", machine->slot, guard.name,
                  static_cast<int>(guard.state), guard.version);
    }
  }
}

}  // namespace unreft::sim
