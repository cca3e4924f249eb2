// How the daemons and hosts of a simulated cluster come and go.
#include <utility>

#include "base/format.h"
#include "smp/job/job_settings.h"
#include "tests/sim/cluster/cluster.h"

namespace unreft::sim {
namespace {

using std::chrono::milliseconds;

// After which whoever minds a daemon starts it again.
constexpr Duration kRestart = milliseconds(50);
// In which a daemon that has read of settings that are over by now still ends by them.
constexpr Duration kHeardLate = std::chrono::seconds(1);

}  // namespace

void Cluster::AddPlace(std::optional<NodeSlot> number) {
  Place place;
  place.machine = std::make_unique<Machine>(world_, NodeSlot{places_.size()}, number);
  places_.push_back(std::move(place));
}

smp::NodeOptions Cluster::OptionsOf(size_t place) const {
  const Place& at = places_[place];
  smp::NodeOptions options = options_.node;
  options.node = at.machine->number;
  if (at.is_spare) options.place = place;
  if (!options_.failure_domains.empty()) {
    options.failure_domain = options_.failure_domains[options.node.value];
  }
  return options;
}

void Cluster::Launch(size_t place, smp::NodeOptions options) {
  Place& at = places_[place];
  ++at.life;
  at.started = now();
  at.daemon = std::make_unique<DaemonProcess>(*at.machine, std::move(options),
                                              std::chrono::microseconds(100), &seams_, at.is_spare);
}

void Cluster::StartDaemon(size_t place) {
  places_[place].is_odd = false;
  Launch(place, OptionsOf(place));
}

// The job restarts for it, as torchrun does for another agent. Unless some fault has started it
// before.
void Cluster::StartLate(NodeSlot slot) {
  if (life(slot.value) > 0) return;
  trace().Add("node {} comes", slot);
  Count("nodes that came later");
  StartDaemon(slot.value);
  AvoidNoMore(slot);
  launcher_->KillOne();
}

void Cluster::EndDaemon(size_t place) {
  Place& at = places_[place];
  // The network and the store know the process by its address, which another may have next.
  if (at.daemon != nullptr) store_.Mend(at.daemon->executor());
  at.daemon.reset();
  at.machine->observer.AfterEvent();
  ++at.life;
}

void Cluster::KillDaemon(size_t place, Duration away) {
  EndDaemon(place);
  Later(away, [this, place, before = life(place)] {
    if (before == life(place) && daemon(place) == nullptr) StartDaemon(place);
  });
}

void Cluster::UpgradeDaemon(size_t place, Duration away) {
  if (daemon(place) == nullptr) return;
  daemon(place)->Stop([this, place, away, before = life(place)] {
    if (before == life(place))
      Later(Duration{}, [this, place, away, before] {
        if (before == life(place)) KillDaemon(place, away);
      });
  });
}

// --- such as are not to be ---

void Cluster::MisstartDaemon(size_t place, smp::NodeOptions options, Duration away,
                             Duration lasts) {
  EndDaemon(place);
  smp::NodeOptions right = OptionsOf(place);
  options.node = right.node;
  options.place = right.place;
  options.failure_domain = right.failure_domain;
  Later(away, [this, place, lasts, options = std::move(options), before = life(place)]() mutable {
    if (before != life(place) || daemon(place) != nullptr) return;
    places_[place].is_odd = true;
    trace().Add("machine {}: a daemon with k {}, m {}, {} slots per rank and {} pins", place,
                options.data_chunks, options.parity_chunks, options.slots_per_rank, options.pins);
    Count("daemons with other options");
    places_[place].knows_better = KnowsJob(place);
    Launch(place, std::move(options));
    Later(lasts, [this, place, before = life(place)] {
      if (before == life(place) && is_odd(place)) KillDaemon(place, Duration{});
    });
  });
}

void Cluster::StartSecond(NodeSlot slot, Duration lasts) {
  AddPlace(slot);
  const size_t place = places_.size() - 1;
  places_[place].is_second = true;
  trace().Add("machine {}: a second daemon of node {}", place, slot);
  Count("second daemons");
  StartDaemon(place);
  Later(lasts, [this, place] {
    if (!observer_->SlotOf(machine(place))) EndDaemon(place);
  });
}

void Cluster::StartAllRight() {
  for (size_t place = 0; place < places(); ++place) {
    Place& at = places_[place];
    if (at.is_second && !observer_->SlotOf(*at.machine)) {
      EndDaemon(place);
    } else if (at.daemon == nullptr || at.is_odd) {
      EndDaemon(place);
      StartDaemon(place);
    }
  }
}

void Cluster::StartMissing() {
  for (size_t place = 0; place < places(); ++place) {
    if (node(place) != nullptr && node(place)->member()->job().view.exists()) return;
  }
  for (size_t place = 0; place < options_.node.nodes; ++place) {
    if (!std::exchange(places_[place].is_spare, false)) continue;
    trace().Add("machine {} is wanted as node {}, as at first", place, place);
    EndDaemon(place);
    StartDaemon(place);
  }
}

// Whoever minds it starts it again, if it may run.
void Cluster::OnFailure(size_t place) {
  const absl::Status why = daemon(place)->failure();
  if (absl::IsResourceExhausted(why)) return KillDaemon(place, kRestart);
  if (places_[place].is_odd && absl::IsFailedPrecondition(why)) {
    Count("daemons with other options refused");
    // The right one is started by who has started this one.
    places_[place].daemon.reset();
    return;
  }
  if (places_[place].is_second && absl::IsFailedPrecondition(why)) {
    Count("second daemons refused");
    return EndDaemon(place);
  }
  if (!MayBeRefused(place)) {
    trace().Fail("the daemon of machine {} ends, and no memory is short: {}", place,
                 why.ToString());
  }
  Count("right daemons refused for a while");
  KillDaemon(place, kRestart);
}

// Whether its memory was made under the settings of the job, and not by a daemon that is odd, too.
bool Cluster::KnowsJob(size_t place) {
  const Machine& machine = *places_[place].machine;
  const auto kept = machine.disk.applied().find("settings");
  if (machine.memory->Names().empty() || kept == machine.disk.applied().end()) return false;
  SettingsRecord settings;
  return settings.ParseFromString(kept->second) &&
         smp::DifferencesFrom(settings, OptionsOf(place)).empty();
}

void Cluster::CheckOdd(size_t place) {
  const Place& at = places_[place];
  if (!at.is_odd || !at.knows_better || !at.daemon->touched_memory()) return;
  trace().Fail("the daemon of machine {} is not started like the job, and has changed its memory",
               place);
}

// The store has had settings that are not the job's since it started, or another daemon has its
// number. Who was refused ends when its ranks do, and the store may have the job's again by then.
bool Cluster::MayBeRefused(size_t place) {
  if (!absl::IsFailedPrecondition(daemon(place)->failure())) return false;
  if (has_odd_settings_ || places_[place].started < odd_settings_until_ + kHeardLate) return true;
  // Or the store says nothing, and an empty memory was made by one that was started otherwise.
  const auto kept = machine(place).disk.applied().find("settings");
  SettingsRecord settings;
  const bool has_kept =
      kept != machine(place).disk.applied().end() && settings.ParseFromString(kept->second);
  if (has_kept && !smp::DifferencesFrom(settings, options_.node).empty()) return true;
  for (size_t other = size(); other < places(); ++other) {
    if (machine(other).number == machine(place).number && daemon(other) != nullptr) return true;
  }
  return false;
}

// --- memory and hosts ---

void Cluster::Empty(size_t place, Duration away) {
  trace().Add("the memory of machine {} is removed", place);
  KillDaemon(place, away);
  const std::optional<NodeSlot> slot = observer_->SlotOf(machine(place));
  if (slot) observer_->OnDestroyed(*slot);
  pins_.OnGivenUp(machine(place));
  ObservedSegments segments(machine(place));
  for (const std::string& name : machine(place).memory->Names()) (void)segments.Remove(name);
  Count("memories removed");
}

Machine::Host Cluster::Destroy(size_t place, Duration away) {
  trace().Add("machine {} is destroyed", place);
  launcher_->KillOn(machine(place));
  KillDaemon(place, away);
  const std::optional<NodeSlot> slot = observer_->SlotOf(machine(place));
  if (slot) observer_->OnDestroyed(*slot);  // which looks at what was there
  Machine::Host host = machine(place).Replace();
  Count("nodes destroyed");
  return host;
}

void Cluster::BringBack(size_t place, Machine::Host host, Duration away) {
  (void)Destroy(place, away);
  trace().Add("machine {} has its old memory again", place);
  machine(place).ComeBack(std::move(host));
  Count("old memories back");
}

}  // namespace unreft::sim
