// Cluster: what stands in a simulated cluster and what faults can do to it: machines, daemons, the
// network between them, the meta store, the trainers and who looks on. Single-threaded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/fake_kv.h"
#include "tests/fakes/sim_transport.h"
#include "tests/sim/cluster/cluster_observer.h"
#include "tests/sim/cluster/cluster_options.h"
#include "tests/sim/cluster/guard_spoiler.h"
#include "tests/sim/cluster/pin_checker.h"
#include "tests/sim/cluster/store_observer.h"
#include "tests/sim/daemon_process.h"
#include "tests/sim/launcher.h"
#include "tests/sim/simulation.h"

namespace unreft::sim {

class Cluster {
 public:
  Cluster(const SimulationOptions& options, Random random);
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
  Launcher& launcher() { return *launcher_; }
  SimNetwork& network() { return network_; }
  FakeKvStore& store() { return store_; }
  const StoreObserver& store_observer() const { return *store_observer_; }
  // Runs `task` so much later, whatever happens until then.
  void Later(Duration delay, Task task);
  // How often something happened.
  void Count(const std::string& what, uint64_t times = 1) { counts_[what] += times; }
  const std::map<std::string, uint64_t>& counts() const { return counts_; }

  // --- machines, by place: first those that are the nodes at first, then the spares ---
  size_t size() const { return machines_.size(); }
  Machine& machine(size_t place) { return *machines_[place]; }
  // Null while its process is away.
  DaemonProcess* daemon(size_t place) { return daemons_[place].get(); }
  std::string Address(size_t place) const { return fmt::format("node{}", place); }
  // Of the node's processes so far; another one is another process.
  uint64_t life(size_t place) const { return lives_[place]; }
  // Whose daemon leads, as it thinks itself.
  std::optional<size_t> LeaderPlace();
  // kill -9, and a new process so much later.
  void KillDaemon(size_t place, Duration away);
  // In place of what is there or away.
  void StartDaemon(size_t place);
  // The daemon and all that it has in memory go, as an operator removes them; the trainers live on.
  void Empty(size_t place, Duration away);
  // The host is gone with all that is on it; another takes its place.
  Machine::Host Destroy(size_t place, Duration away);
  // In place of the host that is there now one is back that was there before.
  void BringBack(size_t place, Machine::Host host, Duration away);

  // What all nodes know, for a failure.
  void Dump();

 private:
  void LookOn();
  void FollowTakeover();
  std::vector<Machine*> Homes() const;
  void CheckKept();
  void CheckMemory();
  std::optional<PresenceRecord> WhoIs(const SimExecutor& process) const;

  const ClusterOptions options_;
  World world_;
  SimNetwork network_;
  FakeKvStore store_;
  ClusterSeams seams_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::unique_ptr<SimExecutor> kernel_;  // what happens to the cluster
  std::unique_ptr<GuardSpoiler> spoiler_;
  std::unique_ptr<ClusterObserver> observer_;
  std::unique_ptr<StoreObserver> store_observer_;
  PinChecker pins_;
  std::vector<std::unique_ptr<DaemonProcess>> daemons_;
  std::vector<uint64_t> lives_;
  std::vector<bool> is_spare_;  // how its next process is started
  bool minds_hosts_ = false;    // somebody starts as a spare what has lost its slot
  std::unique_ptr<Launcher> launcher_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace unreft::sim
