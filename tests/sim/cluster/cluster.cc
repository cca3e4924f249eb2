#include "tests/sim/cluster/cluster.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/job_settings.h"
#include "tests/sim/cluster/group_checker.h"

namespace unreft::sim {
namespace {

// What is looked at now and then only: bounds, and deadlines with slack.
constexpr uint64_t kBoundsEvery = 1024;
constexpr uint64_t kGuardsEvery = 256;
constexpr uint64_t kDeadlinesEvery = 16;

}  // namespace

Cluster::Cluster(const SimulationOptions& options, ClusterOptions cluster, Random random)
    : options_(std::move(cluster)),
      world_(options.seed, options.verbose, options_.tensors),
      network_(world_.scheduler),
      store_(world_.scheduler, random.Next()),
      reads_(world_.trace),
      seams_{store_, network_, reads_, options_.has_copies ? &shelf_ : nullptr},
      kernel_(world_.scheduler.NewExecutor("cluster")),
      pins_(world_) {
  world_.bug = options.bug;
  if (options_.message_bytes_max) {
    network_.options().message_bytes_max = *options_.message_bytes_max;
  }
  minds_hosts_ = random.OneIn(2);
  std::vector<Machine*> places;
  while (places_.size() < size()) {
    AddPlace(std::nullopt);
    places_.back().is_spare = places_.size() > options_.node.nodes;
    places.push_back(places_.back().machine.get());
  }
  spoiler_ = std::make_unique<GuardSpoiler>(world_);
  observer_ = std::make_unique<ClusterObserver>(world_, std::move(places), options_.node.nodes);
  if (options_.has_copies) observer_->set_shelf(&shelf_);
  store_observer_ = std::make_unique<StoreObserver>(
      world_, store_, options_.node.nodes, options_.trainer.world,
      [this](const SimExecutor& process) { return WhoIs(process); });
  observer_->set_is_over(
      [this](const std::string& store_id) { return store_observer_->IsOver(store_id); });
  store_observer_->set_on_record(
      [this](const std::string& name, meta::Revision modified, const std::string& value) {
        observer_->OnRecord(name, modified, value);
      });
  store_observer_->set_on_pins(
      [this](const PinRecord& pins, bool is_first) { pins_.FollowTimes(pins, is_first); });
  store_observer_->set_on_settings(
      [this](const SettingsRecord& settings) { FollowSettings(settings); });
  for (const auto& [slot, comes] : options_.late) avoided_.insert(slot);
  launcher_ = std::make_unique<Launcher>(Homes(), Random(random.Next()), options_.trainer);
}

Cluster::~Cluster() {
  launcher_.reset();
  for (Place& place : places_) place.daemon.reset();
}

void Cluster::Start() {
  const smp::NodeOptions& node = options_.node;
  trace().Add("{} nodes, RS({},{}), {} ranks, {} spares", node.nodes, node.data_chunks,
              node.parity_chunks, options_.trainer.world, options_.spares);
  for (size_t place = 0; place < size(); ++place) {
    if (!options_.late.contains(NodeSlot{place})) StartDaemon(place);
  }
  for (const auto& [slot, comes] : options_.late) {
    trace().Add("node {} is to come", slot);
    Count("nodes that the job begins without");
    Later(comes, [this, slot = slot] { StartLate(slot); });
  }
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
    machine(place).observer.AfterEvent();
    if (daemon(place) != nullptr) CheckOdd(place);
    if (daemon(place) != nullptr && !daemon(place)->failure().ok()) OnFailure(place);
    spoiler_->AfterEvent(machine(place));
    const uint64_t takeovers = observer_->takeovers() + observer_->returns();
    if (daemon(place) != nullptr) observer_->AfterEvent(*daemon(place));
    for (const Machine* renewed : observer_->TakeRenewed()) pins_.OnNewMemory(*renewed);
    pins_.FollowStanding(observer_->standing(), observer_->machines());
    if (node(place) != nullptr) {
      pins_.AfterEvent(machine(place), node(place)->member()->job(), observer_->machines());
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
  for (uint64_t slot : options_.Homes()) {
    while (avoided_.contains(NodeSlot{slot})) slot = (slot + 1) % options_.node.nodes;
    homes.push_back(observer_->machines().at(NodeSlot{slot}));
  }
  return homes;
}

bool Cluster::Avoid(NodeSlot slot) {
  const uint64_t most = options_.is_memory_tight ? 1 : options_.node.nodes - 2;
  if (avoided_.size() >= most) return false;
  if (!avoided_.insert(slot).second) return false;
  launcher_->SetHomes(Homes());
  return true;
}

void Cluster::AvoidNoMore(NodeSlot slot) {
  if (avoided_.erase(slot) > 0) launcher_->SetHomes(Homes());
}

void Cluster::AvoidNone() {
  avoided_.clear();
  launcher_->SetHomes(Homes());
}

// The next attempt finds its ranks where their nodes are now. Who has lost his slot is refused
// until whoever minds the host starts it as a spare, if somebody does; else it may get it back.
void Cluster::FollowTakeover() {
  launcher_->SetHomes(Homes());
  for (size_t place = 0; place < places(); ++place) {
    if (observer_->SlotOf(machine(place))) continue;
    pins_.OnGivenUp(machine(place));
    if (places_[place].is_spare || places_[place].is_second || !minds_hosts_) continue;
    places_[place].is_spare = true;
    Later(std::chrono::milliseconds(300), [this, place, before = life(place)] {
      if (before == life(place) && daemon(place) != nullptr) {
        KillDaemon(place, std::chrono::milliseconds(50));
      }
    });
  }
}

// Those of a daemon that was started otherwise, in a store that is new to it.
void Cluster::FollowSettings(const SettingsRecord& settings) {
  if (has_odd_settings_) odd_settings_until_ = now();
  has_odd_settings_ = !smp::DifferencesFrom(settings, options_.node).empty();
}

std::optional<StoreWriter> Cluster::WhoIs(const SimExecutor& process) const {
  for (const Place& place : places_) {
    const DaemonProcess* daemon = place.daemon.get();
    if (daemon == nullptr || &place.daemon->executor() != &process) continue;
    smp::Node* node = place.daemon->node();
    if (node == nullptr) return std::nullopt;
    const smp::NodeRecord& record = *node->state().record;
    StoreWriter writer;
    writer.presence.set_slot(node->state().options.node.value);
    writer.presence.set_session(record.session().value);
    const RandomId incarnation = record.incarnation();
    writer.presence.set_incarnation({incarnation.begin(), incarnation.end()});
    writer.is_odd = place.is_odd;
    return writer;
  }
  return std::nullopt;
}

void Cluster::CheckKept() {
  pins_.CheckGuards();
  for (size_t place = 0; place < places(); ++place) {
    if (node(place) != nullptr) pins_.CheckInventory(machine(place), *node(place));
  }
}

// Guards that fit, and those that growths of the slabs have made too small, until they are old.
void Cluster::CheckMemory() {
  const uint64_t guards_max = 3 * options_.node.SlotsPerRank();
  for (const Place& place : places_) {
    Machine* const machine = place.machine.get();
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

std::optional<size_t> Cluster::LeaderPlace() {
  for (size_t place = 0; place < places(); ++place) {
    if (node(place) != nullptr && node(place)->member()->leads()) return place;
  }
  return std::nullopt;
}

// --- for a failure ---

void Cluster::Dump() {
  for (size_t place = 0; place < places(); ++place) {
    if (node(place) == nullptr) continue;
    const smp::NodeState& state = node(place)->state();
    const smp::Member& member = *node(place)->member();
    const meta::JobState& job = member.job();
    trace().Add("node {}: session {}, committed {}, timeline {}, leads {}, store {}",
                state.options.node, state.record->session(), state.record->committed(),
                state.record->chain().newest(), member.leads(), member.store_status().ToString());
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
  for (const Place& place : places_) {
    for (const GuardLook& guard : LookAtGuards(*place.machine)) {
      trace().Add("machine {}: guard {} of state {} of {}", place.machine->slot, guard.name,
                  static_cast<int>(guard.state), guard.version);
    }
  }
}

}  // namespace unreft::sim
