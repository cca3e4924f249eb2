#include "tests/sim/cluster/cluster_simulation.h"

#include <list>
#include <utility>

#include "base/format.h"
#include "tests/sim/cluster/cluster.h"
#include "tests/sim/cluster/cluster_faults.h"
#include "tests/sim/cluster/standstill_checker.h"

namespace unreft::sim {
namespace {

using std::chrono::seconds;

constexpr Duration kCalmMax = seconds(40);  // in which the job must be well again

class ClusterSimulation {
 public:
  explicit ClusterSimulation(const SimulationOptions& options)
      : options_(options),
        random_(options.seed ^ 0xc1a5),
        cluster_(options, Random(random_.Next())),
        faults_(cluster_, Random(random_.Next()), options.store_losses),
        standstill_(cluster_) {}

  SimulationResult Run() {
    cluster_.Start();
    if (options_.faults) faults_.Start();
    RunUntil(Duration::max(),
             [&] { return cluster_.now() >= options_.faulty_time + faults_.quiet_time(); });
    if (!cluster_.failed()) BringCalm();
    if (!cluster_.failed()) WaitForProgress();
    if (!cluster_.failed() && cluster_.options().node.pins > 0) WaitForPins();
    if (!cluster_.failed()) WaitForRoom();
    if (!cluster_.failed()) WaitForLastRestart();
    if (!cluster_.failed()) End();
    return Result();
  }

 private:
  template <typename Done>
  bool RunUntil(Duration end, Done done) {
    while (cluster_.now() < end) {
      if (done()) return true;
      if (!cluster_.RunOne()) break;
      standstill_.AfterEvent();
    }
    return false;
  }

  void BringCalm() {
    faults_.Calm();
    // Who could not register trains unprotected until the next start.
    if (options_.faults) cluster_.launcher().KillOne();
  }

  void WaitForProgress() {
    const uint64_t before = cluster_.history().commits();
    const uint64_t checked = cluster_.observer().commits_checked();
    const bool well = RunUntil(cluster_.now() + kCalmMax, [&] {
      return cluster_.launcher().Trains() && cluster_.history().commits() > before + 3 &&
             cluster_.observer().commits_checked() > checked;
    });
    if (well || cluster_.failed()) return;
    cluster_.Dump();
    cluster_.trace().Fail(
        "no progress: {} commits, {} seen protected, in {} s of calm, trains: {}",
        cluster_.history().commits() - before, cluster_.observer().commits_checked() - checked,
        std::chrono::duration_cast<seconds>(kCalmMax).count(), cluster_.launcher().Trains());
  }

  // All pins end when their time is up.
  void WaitForPins() {
    const bool over = RunUntil(cluster_.now() + kCalmMax, [&] {
      const auto leader = cluster_.LeaderPlace();
      return leader && cluster_.node(*leader)->member()->job().pins.value.pins().empty();
    });
    if (over || cluster_.failed()) return;
    cluster_.Dump();
    cluster_.trace().Fail("pins are not over in {} s of calm",
                          std::chrono::duration_cast<seconds>(kCalmMax).count());
  }

  // What is there goes for newer versions, and slots of ranks that train elsewhere for good.
  void WaitForRoom() {
    struct Held {
      const Machine& machine;
      Version version;
      Rank rank;
    };
    std::list<Held> held;
    for (const auto& [slot, machine] : cluster_.observer().machines()) {
      for (const auto& [version, rank] : machine->observer.Slabs()) {
        held.push_back({*machine, version, rank});
      }
    }
    const bool gone = RunUntil(cluster_.now() + kCalmMax, [&] {
      held.remove_if(
          [](const Held& slab) { return !slab.machine.observer.Holds(slab.version, slab.rank); });
      return held.empty();
    });
    if (!gone && !cluster_.failed()) {
      cluster_.Dump();
      cluster_.trace().Fail("machine {} keeps {} of rank {}, and nobody has pinned it",
                            held.front().machine.slot, held.front().version, held.front().rank);
    }
    if (!cluster_.failed() && !RunUntil(cluster_.now() + kCalmMax, [&] { return !MovedSlot(); })) {
      const auto [place, rank] = MovedSlot().value_or(std::pair{size_t{0}, Rank{0}});
      cluster_.Dump();
      cluster_.trace().Fail("the daemon at {} keeps slots of rank {}, which trains elsewhere",
                            place, rank);
    }
  }

  std::optional<std::pair<size_t, Rank>> MovedSlot() {
    for (size_t place = 0; place < cluster_.places(); ++place) {
      if (cluster_.node(place) == nullptr) continue;
      const smp::NodeState& state = cluster_.node(place)->state();
      if (state.standing.is_out) continue;  // until whoever minds the host stops it
      for (const Rank rank : state.slots->Ranks()) {
        const auto slots = state.slots->OfRank(rank);
        const auto is_fine = [](const smp::Slot* slot) {
          return slot->phase != smp::SlotPhase::kQuarantined;
        };
        if (!state.sessions.contains(rank) && std::ranges::any_of(slots, is_fine)) {
          return std::pair{place, rank};
        }
      }
    }
    return std::nullopt;
  }

  // In the calm nothing explains a step back.
  void WaitForLastRestart() {
    const std::optional<Version> committed = cluster_.history().committed();
    const uint64_t decisions = cluster_.observer().decisions();
    const uint64_t failures = cluster_.observer().failures();
    const uint64_t commits = cluster_.history().commits();
    cluster_.launcher().KillOne();
    const bool well = RunUntil(cluster_.now() + kCalmMax, [&] {
      return cluster_.observer().decisions() > decisions && cluster_.launcher().Trains() &&
             cluster_.history().commits() > commits;
    });
    if (cluster_.failed()) return;
    if (!well) {
      cluster_.Dump();
      cluster_.trace().Fail("the last restart did not train and commit again");
    } else if (cluster_.observer().failures() > failures) {
      cluster_.trace().Fail("the last restart was refused {} times",
                            cluster_.observer().failures() - failures);
    } else if (committed && cluster_.observer().decided() < committed) {
      cluster_.trace().Fail("{} was committed in the calm, and the last restart has restored {}",
                            *committed, *cluster_.observer().decided());
    }
  }

  void End() {
    cluster_.launcher().KillAll();
    RunUntil(cluster_.now() + seconds(10), [&] { return cluster_.launcher().Empty(); });
    for (size_t place = 0; place < cluster_.places(); ++place) {
      cluster_.machine(place).observer.CheckAll();
    }
  }

  SimulationResult Result() {
    const World& world = cluster_.world();
    SimulationResult result;
    result.failure = world.trace.failure();
    result.tail = {world.trace.tail().begin(), world.trace.tail().end()};
    result.hash = world.trace.hash() * 31 + world.scheduler.digest();
    result.counts = cluster_.counts();
    result.counts["events"] = world.scheduler.events_run();
    result.counts["faults"] = faults_.injected();
    result.counts["attempts"] = cluster_.launcher().attempts();
    result.counts["restores"] = world.history.restores();
    result.counts["commits"] = cluster_.observer().commits_checked();
    result.counts["decisions"] = cluster_.observer().decisions();
    result.counts["writes to the meta store"] = cluster_.store_observer().writes();
    result.counts["views"] = cluster_.observer().views();
    result.counts["slabs decoded"] = cluster_.observer().slabs_lost();
    result.counts["slabs decoded that had rotted"] = cluster_.observer().slabs_rotted();
    result.counts["reshapes"] = cluster_.observer().reshapes();
    result.counts["replicas found to differ"] = cluster_.store_observer().disagreements();
    result.counts["decided versions guarded anew"] = cluster_.observer().guarded_anew();
    result.counts["commits checked in part"] = cluster_.observer().commits_checked_in_part();
    result.counts["losses made good before a commit"] = cluster_.observer().losses_made_good();
    result.counts["versions pinned"] = cluster_.pins().pinned();
    result.counts["restored out of durable copies"] = cluster_.observer().copies_restored();
    result.counts["slots taken by spares"] = cluster_.observer().takeovers();
    result.counts["slots given back"] = cluster_.observer().returns();
    return result;
  }

  const SimulationOptions options_;
  Random random_;
  Cluster cluster_;
  ClusterFaults faults_;
  StandstillChecker standstill_;
};

}  // namespace

SimulationResult SimulateCluster(const SimulationOptions& options) {
  return ClusterSimulation(options).Run();
}

}  // namespace unreft::sim
