// Faults by what operators do: daemons that are started anew, wrongly or twice, and orders.
#include "tests/sim/cluster/cluster_faults.h"

namespace unreft::sim {

using std::chrono::milliseconds;

namespace {

// Of one order, while the leader is busy.
constexpr uint64_t kOrdersMax = 10;
constexpr Duration kOrderAgain = milliseconds(50);

}  // namespace

// As an operator does it, one daemon after the other.
void ClusterFaults::Upgrade() { cluster_.UpgradeDaemon(AnyPlace(), DrawAway()); }

// Of a job that has something to lose: else the first to come says how it is started.
void ClusterFaults::Misstart(size_t place, Duration away) {
  if (!cluster_.history().committed()) return;
  cluster_.MisstartDaemon(place, DrawOtherOptions(), away,
                          milliseconds(20 + random_.Below(random_.OneIn(2) ? 5000 : 200)));
}

// It may be the first that comes to a store which knows nothing of the job any more.
void ClusterFaults::MisstartInNewStore() {
  if (!cluster_.store().running() || !cluster_.history().committed()) return;
  cluster_.store().Kill();
  cluster_.store().LoseData();
  cluster_.observer().OnStoreChanged();
  cluster_.pins().OnStoreChanged();
  cluster_.store().Restart();
  Misstart(AnyPlace(), milliseconds(random_.Below(60)));
}

smp::NodeOptions ClusterFaults::DrawOtherOptions() {
  smp::NodeOptions options = cluster_.options().node;
  switch (random_.Below(5)) {
    case 0:  // as without any options
      options.data_chunks = 1;
      options.parity_chunks = 0;
      break;
    case 1:
      options.data_chunks -= 1;
      break;
    case 2:
      options.parity_chunks = options.parity_chunks == 1 ? 2 : 1;
      break;
    case 3:
      options.slots_per_rank = options.slots_per_rank == 2 ? 3 : 2;
      break;
    default:
      options.pins = options.pins == 0 ? 1 : 0;
  }
  return options;
}

// While the first one runs, or after it was killed, before its grace is over.
void ClusterFaults::StartSecond() {
  const smp::NodeOptions& options = cluster_.options().node;
  const size_t place = random_.Below(options.nodes);
  if (cluster_.is_spare(place)) return;
  if (random_.OneIn(2)) {
    const Duration grace = options.presence_ttl + options.lost_grace;
    cluster_.KillDaemon(place, Duration(random_.Below(grace.count())));
  }
  cluster_.StartSecond(NodeSlot{place}, milliseconds(100) + DrawWhile());
}

// While ranks are connected, with --force or without, or between two attempts. What trains on in a
// timeline that is over is started anew.
void ClusterFaults::OrderFreshStart() {
  const uint64_t how = random_.Below(3);
  if (how == 0) cluster_.launcher().KillOne();
  OrderFreshStart(how == 2, kOrdersMax);
}

void ClusterFaults::OrderFreshStart(bool force, uint64_t times) {
  cluster_.launcher().OrderFreshStart(
      cluster_.machine(AnyPlace()), force, [this, force, times](absl::Status status) {
        cluster_.trace().Add("the order of a fresh start: {}", status.ToString());
        if (status.ok()) {
          cluster_.Count("fresh starts ordered");
          cluster_.Later(DrawWhile(), [this] { cluster_.launcher().KillOne(); });
        } else if (absl::IsFailedPrecondition(status)) {
          cluster_.Count("orders of a fresh start refused");
        } else if (times > 1) {
          cluster_.Later(kOrderAgain, [this, force, times] {
            if (!calm_) OrderFreshStart(force, times - 1);
          });
        }
      });
}

}  // namespace unreft::sim
