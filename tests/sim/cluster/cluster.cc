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
constexpr uint64_t kGuardsEvery = 256;
constexpr uint64_t kDeadlinesEvery = 16;

}  // namespace

Cluster::Cluster(const SimulationOptions& options, Random random)
    : options_(DrawClusterOptions(random)),
      world_(options.seed, options.verbose, options_.tensors),
      network_(world_.scheduler),
      store_(world_.scheduler, random.Next()),
      seams_{store_, network_},
      kernel_(world_.scheduler.NewExecutor("cluster")),
      pins_(world_) {
  world_.bug = options.bug;
  minds_hosts_ = random.OneIn(2);
  std::vector<Machine*> places;
  for (uint64_t place = 0; place < options_.node.nodes + options_.spares; ++place) {
    machines_.push_back(std::make_unique<Machine>(world_, NodeSlot{place}));
    places.push_back(machines_.back().get());
    is_spare_.push_back(place >= options_.node.nodes);
  }
  spoiler_ = std::make_unique<GuardSpoiler>(world_);
  observer_ = std::make_unique<ClusterObserver>(world_, std::move(places), options_.node.nodes);
  store_observer_ = std::make_unique<StoreObserver>(
      world_, store_, options_.node.nodes, options_.spares == 0 ? 0 : machines_.size(),
      options_.trainer.world, [this](const SimExecutor& process) { return WhoIs(process); });
  observer_->set_is_over(
      [this](const std::string& store_id) { return store_observer_->IsOver(store_id); });
  store_observer_->set_on_record(
      [this](const std::string& name, meta::Revision modified, const std::string& value) {
        observer_->OnRecord(name, modified, value);
      });
  store_observer_->set_on_pins(
      [this](const PinRecord& pins, bool is_first) { pins_.FollowTimes(pins, is_first); });
  launcher_ = std::make_unique<Launcher>(Homes(), Random(random.Next()), options_.trainer);
  daemons_.resize(machines_.size());
  lives_.resize(machines_.size());
}

Cluster::~Cluster() {
  launcher_.reset();
  daemons_.clear();
}

void Cluster::Start() {
  const smp::NodeOptions& node = options_.node;
  trace().Add("{} nodes, RS({},{}), {} ranks, {} spares", node.nodes, node.data_chunks,
              node.parity_chunks, options_.trainer.world, options_.spares);
  for (size_t place = 0; place < size(); ++place) StartDaemon(place);
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
    const size_t place = host - 1;
    machines_[place]->observer.AfterEvent();
    if (daemon(place) != nullptr && !daemon(place)->failure().ok()) {
      KillDaemon(place, std::chrono::milliseconds(50));  // whoever minds it starts it again
    }
    spoiler_->AfterEvent(*machines_[place]);
    const uint64_t takeovers = observer_->takeovers() + observer_->returns();
    if (daemon(place) != nullptr) observer_->AfterEvent(*daemon(place));
    pins_.FollowStanding(observer_->standing(), observer_->machines());
    if (daemon(place) != nullptr && daemon(place)->node() != nullptr) {
      pins_.AfterEvent(*machines_[place], daemon(place)->node()->member()->job(),
                       observer_->machines());
    }
    if (observer_->takeovers() + observer_->returns() != takeovers) FollowTakeover();
  } else {
    store_observer_->AfterEvent();
  }
  const uint64_t events = world_.scheduler.events_run();
  if (events % kDeadlinesEvery == 0) launcher_->AfterEvent();
  if (events % kBoundsEvery == 0) CheckMemory();
  if (events % kGuardsEvery == 0) CheckKept();
}

// By rank.
std::vector<Machine*> Cluster::Homes() const {
  std::vector<Machine*> homes;
  for (const auto& [slot, machine] : observer_->machines()) {
    homes.insert(homes.end(), options_.ranks[slot.value], machine);
  }
  return homes;
}

// The next attempt finds its ranks where their nodes are now. Who has lost his slot is refused
// until whoever minds the host starts it as a spare, if somebody does; else it may get it back.
void Cluster::FollowTakeover() {
  launcher_->SetHomes(Homes());
  for (size_t place = 0; place < size(); ++place) {
    if (observer_->SlotOf(*machines_[place])) continue;
    pins_.OnGivenUp(*machines_[place]);
    if (is_spare_[place] || !minds_hosts_) continue;
    is_spare_[place] = true;
    Later(std::chrono::milliseconds(300), [this, place, life = life(place)] {
      if (life == lives_[place] && daemon(place) != nullptr) {
        KillDaemon(place, std::chrono::milliseconds(50));
      }
    });
  }
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

void Cluster::CheckKept() {
  pins_.CheckGuards();
  for (size_t place = 0; place < size(); ++place) {
    if (daemon(place) == nullptr || daemon(place)->node() == nullptr) continue;
    pins_.CheckInventory(*machines_[place], *daemon(place)->node());
  }
}

// Guards that fit, and those that growths of the slabs have made too small, until they are old.
void Cluster::CheckMemory() {
  const uint64_t guards_max = 3 * options_.node.SlotsPerRank();
  for (const auto& machine : machines_) {
    uint64_t bytes = 0;
    const absl::StatusOr<std::vector<SegmentInfo>> segments =
        FakeSegmentStore(*machine->memory).List(machine->prefix());
    for (const SegmentInfo& segment : segments.value()) {
      const std::string kind = segment.name.substr(machine->prefix().size());
      if (kind.starts_with("slot") || kind.starts_with("guard")) bytes += segment.bytes;
    }
    if (bytes > options_.node.memory_bytes_max) {
      trace().Fail("the slots and guards of machine {} take {} bytes, memory_bytes_max is {}",
                   machine->slot, bytes, options_.node.memory_bytes_max);
    }
    const auto guards = std::ranges::count_if(
        machine->memory->Names(), [prefix = machine->prefix() + "guard"](const std::string& name) {
          return name.starts_with(prefix);
        });
    if (static_cast<uint64_t>(guards) <= guards_max) continue;
    trace().Fail("machine {} has {} guards, {} are enough", machine->slot, guards, guards_max);
  }
}

// --- nodes ---

void Cluster::StartDaemon(size_t place) {
  smp::NodeOptions options = options_.node;
  options.node = NodeSlot{place};
  if (is_spare_[place]) options.place = place;
  if (!options_.failure_domains.empty()) options.failure_domain = options_.failure_domains[place];
  ++lives_[place];
  daemons_[place] =
      std::make_unique<DaemonProcess>(*machines_[place], std::move(options),
                                      std::chrono::microseconds(100), &seams_, is_spare_[place]);
}

void Cluster::KillDaemon(size_t place, Duration away) {
  // The network and the store know the process by its address, which another may have next.
  if (daemons_[place] != nullptr) store_.Mend(daemons_[place]->executor());
  daemons_[place].reset();
  machines_[place]->observer.AfterEvent();
  const uint64_t life = ++lives_[place];
  Later(away, [this, place, life] {
    if (life == lives_[place] && daemons_[place] == nullptr) StartDaemon(place);
  });
}

void Cluster::Empty(size_t place, Duration away) {
  trace().Add("the memory of machine {} is removed", place);
  KillDaemon(place, away);
  const std::optional<NodeSlot> slot = observer_->SlotOf(*machines_[place]);
  if (slot) observer_->OnDestroyed(*slot);
  pins_.OnGivenUp(*machines_[place]);
  ObservedSegments segments(*machines_[place]);
  for (const std::string& name : machines_[place]->memory->Names()) (void)segments.Remove(name);
  Count("memories removed");
}

Machine::Host Cluster::Destroy(size_t place, Duration away) {
  trace().Add("machine {} is destroyed", place);
  launcher_->KillOn(*machines_[place]);
  KillDaemon(place, away);
  const std::optional<NodeSlot> slot = observer_->SlotOf(*machines_[place]);
  if (slot) observer_->OnDestroyed(*slot);  // which looks at what was there
  Machine::Host host = machines_[place]->Replace();
  Count("nodes destroyed");
  return host;
}

void Cluster::BringBack(size_t place, Machine::Host host, Duration away) {
  (void)Destroy(place, away);
  trace().Add("machine {} has its old memory again", place);
  machines_[place]->ComeBack(std::move(host));
  Count("old memories back");
}

std::optional<size_t> Cluster::LeaderPlace() {
  for (size_t place = 0; place < size(); ++place) {
    smp::Node* node = daemons_[place] == nullptr ? nullptr : daemons_[place]->node();
    if (node != nullptr && node->member()->leads()) return place;
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
    trace().Add("  given up {}", job.abandoned.value.ShortDebugString());
    for (const smp::Slot* slot : state.slots->All()) {
      trace().Add("  slot {} of rank {}: {} {} captured {} sealing {} reads {} {}", slot->id,
                  slot->owner, smp::SlotPhaseName(slot->phase), slot->version,
                  slot->captured.has_value(), slot->sealing, slot->reads, slot->problem);
    }
  }
  for (const auto& machine : machines_) {
    for (const GuardLook& guard : LookAtGuards(*machine)) {
      trace().Add("machine {}: guard {} of state {} of {}", machine->slot, guard.name,
                  static_cast<int>(guard.state), guard.version);
    }
  }
}

}  // namespace unreft::sim
