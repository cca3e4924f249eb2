// Cluster: what stands in a simulated cluster and what faults can do to it: machines, daemons, the
// network between them, the meta store, the trainers and who looks on. Single-threaded.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/sim/cluster/cluster_observer.h"
#include "tests/sim/cluster/cluster_options.h"
#include "tests/sim/cluster/durable_shelf.h"
#include "tests/sim/cluster/guard_spoiler.h"
#include "tests/sim/cluster/pin_checker.h"
#include "tests/sim/cluster/read_checker.h"
#include "tests/sim/cluster/store_observer.h"
#include "tests/sim/daemon_process.h"
#include "tests/sim/launcher.h"
#include "tests/sim/simulation.h"

namespace unreft::sim {

class Cluster {
 public:
  // As large and set as is drawn.
  Cluster(const SimulationOptions& options, Random random)
      : Cluster(options, DrawClusterOptions(random), random) {}
  Cluster(const SimulationOptions& options, ClusterOptions cluster, Random random);
  ~Cluster();

  // Starts all daemons and the first attempt.
  void Start();
  // One event, and all who look on; false when none is left or a rule was broken.
  bool RunOne();

  bool failed() const { return world_.trace.failure().has_value(); }
  Duration now() const { return world_.scheduler.now(); }
  Trace& trace() { return world_.trace; }
  const World& world() const { return world_; }
  const History& history() const { return world_.history; }
  const ClusterOptions& options() const { return options_; }
  ClusterObserver& observer() { return *observer_; }
  GuardSpoiler& spoiler() { return *spoiler_; }
  PinChecker& pins() { return pins_; }
  ReadChecker& reads() { return reads_; }
  DurableShelf& shelf() { return shelf_; }
  Launcher& launcher() { return *launcher_; }
  SimNetwork& network() { return network_; }
  FakeKvStore& store() { return store_; }
  const StoreObserver& store_observer() const { return *store_observer_; }
  // Runs `task` so much later, whatever happens until then.
  void Later(Duration delay, Task task);
  // How often something happened.
  void Count(const std::string& what, uint64_t times = 1) { counts_[what] += times; }
  const std::map<std::string, uint64_t>& counts() const { return counts_; }

  // --- machines, by place: first those that are the nodes at first, then the spares, then hosts
  // with a second daemon of some node ---
  // Without the last.
  size_t size() const { return options_.node.nodes + options_.spares; }
  size_t places() const { return places_.size(); }
  Machine& machine(size_t place) { return *places_[place].machine; }
  // Null while its process is away.
  DaemonProcess* daemon(size_t place) { return places_[place].daemon.get(); }
  // As those have it who run.
  smp::Node* node(size_t place) {
    return daemon(place) == nullptr ? nullptr : daemon(place)->node();
  }
  std::string Address(size_t place) const { return fmt::format("node{}", place); }
  // Of the node's processes so far; another one is another process.
  uint64_t life(size_t place) const { return places_[place].life; }
  // Whose daemon leads, as it thinks itself.
  std::optional<size_t> LeaderPlace();
  // Whether what runs there is not started like the job.
  bool is_odd(size_t place) const { return places_[place].is_odd; }
  bool is_spare(size_t place) const { return places_[place].is_spare; }

  // kill -9, and a new process so much later.
  void KillDaemon(size_t place, Duration away);
  // SIGTERM, and a new process of another release so much later.
  void UpgradeDaemon(size_t place, Duration away);
  // In place of what is there or away.
  void StartDaemon(size_t place);
  // kill -9, then a process with other options than the job's, and later one with the right ones.
  void MisstartDaemon(size_t place, smp::NodeOptions options, Duration away, Duration lasts);
  // On a host of its own, with the number of that node. It is stopped later, unless it has the slot
  // by then.
  void StartSecond(NodeSlot slot, Duration lasts);
  // All that were started wrongly end, but for one that has a slot by now; all others run.
  void StartAllRight();
  // Where all has been lost and the job cannot begin, since what was a node has become a spare: it
  // is a node again, as an operator reads of the nodes that are missing.
  void StartMissing();
  // The daemon and all that it has in memory go, as an operator removes them; the trainers live on.
  void Empty(size_t place, Duration away);
  // The host is gone with all that is on it; another takes its place.
  Machine::Host Destroy(size_t place, Duration away);
  // In place of the host that is there now one is back that was there before.
  void BringBack(size_t place, Machine::Host host, Duration away);

  // From the next attempt on no rank is on that node, those that were are on the next one; false,
  // and nothing is changed, if too few nodes would be left.
  bool Avoid(NodeSlot slot);
  void AvoidNoMore(NodeSlot slot);
  void AvoidNone();

  // What all nodes know, for a failure.
  void Dump();

 private:
  struct Place {
    std::unique_ptr<Machine> machine;
    std::unique_ptr<DaemonProcess> daemon;
    uint64_t life = 0;
    Duration started{};      // its daemon, or the last one
    bool is_spare = false;   // how its next process is started
    bool is_second = false;  // its daemon has the number of a node on another host
    bool is_odd = false;     // what runs now, or ran last, is not started like the job
    // By what lies here the daemon that runs knows that it is not, before it touches any of that.
    bool knows_better = false;
  };

  void AddPlace(std::optional<NodeSlot> number);
  void StartLate(NodeSlot slot);
  void Launch(size_t place, smp::NodeOptions options);
  smp::NodeOptions OptionsOf(size_t place) const;
  void EndDaemon(size_t place);
  void OnFailure(size_t place);
  bool MayBeRefused(size_t place);
  bool KnowsJob(size_t place);
  void CheckOdd(size_t place);
  void LookOn();
  void FollowTakeover();
  void FollowSettings(const SettingsRecord& settings);
  std::vector<Machine*> Homes() const;
  void CheckKept();
  void CheckMemory();
  std::optional<StoreWriter> WhoIs(const SimExecutor& process) const;

  const ClusterOptions options_;
  World world_;
  SimNetwork network_;
  FakeKvStore store_;
  ReadChecker reads_;
  DurableShelf shelf_;
  ClusterSeams seams_;
  std::vector<Place> places_;
  std::unique_ptr<SimExecutor> kernel_;  // what happens to the cluster
  std::unique_ptr<GuardSpoiler> spoiler_;
  std::unique_ptr<ClusterObserver> observer_;
  std::unique_ptr<StoreObserver> store_observer_;
  PinChecker pins_;
  bool minds_hosts_ = false;  // somebody starts as a spare what has lost its slot
  // When the store last had settings that are not the job's.
  bool has_odd_settings_ = false;
  Duration odd_settings_until_{};
  std::set<NodeSlot> avoided_;
  std::unique_ptr<Launcher> launcher_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace unreft::sim
