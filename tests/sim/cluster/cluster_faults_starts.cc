// Faults by what operators do: daemons that are started anew, wrongly or twice, and orders.
#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "base/format.h"
#include "tests/sim/cluster/cluster_faults.h"

namespace unreft::sim {

using std::chrono::milliseconds;

namespace {

// Of one order, while the leader is busy.
constexpr uint64_t kOrdersMax = 10;
constexpr Duration kOrderAgain = milliseconds(50);
constexpr Duration kAnswersWithin = std::chrono::seconds(3);

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

// One of whose ranks may end meanwhile.
void ClusterFaults::StartSecondOnceAllTrain(uint64_t looks) {
  const Duration how_long = milliseconds(1 + random_.Below(random_.OneIn(2) ? 400 : 40));
  // A rank whose slot is on another machine by now commits nothing any more, nor does its attempt;
  // nor one whose timeline a fresh start has ended.
  const auto is_over = [this] {
    return std::ranges::any_of(cluster_.launcher().Present(), [this](const TrainerProcess* rank) {
      return !cluster_.observer().SlotOf(rank->machine()).has_value() ||
             cluster_.observer().IsGivenUp(rank->timeline());
    });
  };
  if (!cluster_.launcher().StartSecond(how_long, is_over)) {
    if (looks == 0 || calm_) return;
    return cluster_.Later(kLookEvery, [this, looks] { StartSecondOnceAllTrain(looks - 1); });
  }
  cluster_.Count("second launchers");
  if (!random_.OneIn(3)) return;
  cluster_.Later(Duration(random_.Below(how_long.count())),
                 [this] { cluster_.launcher().KillOne(); });
}

// Of what is pinned, or of what is committed or was so before; none where nothing is.
std::optional<Step> ClusterFaults::DrawEarlierStep() {
  const std::optional<Version> committed = cluster_.history().committed();
  const std::vector<Version> pinned = cluster_.pins().Pinned();
  if (!committed) return std::nullopt;
  Step step{committed->step.value - std::min(committed->step.value, random_.Below(3))};
  if (!pinned.empty() && random_.OneIn(2)) step = pinned[random_.Below(pinned.size())].step;
  return step;
}

void ClusterFaults::AskForAnEarlierStep() {
  const std::optional<Step> step = DrawEarlierStep();
  if (!step) return;
  cluster_.launcher().NextAtOrBefore(*step);
  cluster_.launcher().KillOne();
  cluster_.Count("attempts that ask for an earlier step");
}

// What cannot be restored is taken back.
void ClusterFaults::OrderRewind() {
  const std::optional<Step> drawn = DrawEarlierStep();
  if (!drawn) return;
  const Step to = *drawn;
  cluster_.launcher().OrderRewind(
      cluster_.machine(AnyPlace()), to, [this, to](const absl::Status& status) {
        cluster_.trace().Add("the order to restore step {}: {}", to, status.ToString());
        if (!status.ok()) return cluster_.Count("orders of a rewind refused");
        cluster_.Count("rewinds ordered");
        cluster_.Later(DrawWhile(), [this] { cluster_.launcher().KillOne(); });
      });
  TakeRewindBack();
}

// Until it is known that nothing is ordered any more. A daemon that ends meanwhile answers nothing.
void ClusterFaults::TakeRewindBack() {
  cluster_.Later(milliseconds(500) + DrawWhile(), [this] {
    const auto is_answered = std::make_shared<bool>(false);
    cluster_.launcher().OrderRewind(cluster_.machine(AnyPlace()), std::nullopt,
                                    [this, is_answered](const absl::Status& status) {
                                      cluster_.trace().Add("the rewind is taken back: {}",
                                                           status.ToString());
                                      *is_answered = true;
                                      if (!status.ok() && !absl::IsNotFound(status))
                                        TakeRewindBack();
                                    });
    cluster_.Later(kAnswersWithin, [this, is_answered] {
      if (!*is_answered) TakeRewindBack();
    });
  });
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

// For one node less, which the launcher heeds or not. The host of a node that is left out may be
// taken away. Later the node is wanted again.
void ClusterFaults::OrderResize() {
  if (ordered_out_) return;
  const uint64_t nodes = cluster_.options().node.nodes;
  const NodeSlot slot{random_.Below(nodes)};
  const bool is_heeded = !random_.OneIn(4);
  if (is_heeded && !cluster_.Avoid(slot)) return;
  ordered_out_ = slot;
  const std::string order = random_.OneIn(3) ? fmt::format(R"({{"nodes":{}}})", nodes - 1)
                                             : fmt::format(R"({{"without":[{}]}})", slot);
  cluster_.launcher().OrderResize(
      cluster_.machine(AnyPlace()), order, [this, order](const absl::Status& status) {
        cluster_.trace().Add("the order {}: {}", order, status.ToString());
        if (!status.ok()) return cluster_.Count("orders of a resize refused");
        cluster_.Count("resizes ordered");
        cluster_.Later(DrawWhile(), [this] {
          if (!calm_) cluster_.launcher().KillOne();
        });
      });
  if (!random_.OneIn(4)) TakeAwayOnceLeftOut(slot, kLooksMax);
  TakeResizeBack(is_heeded);
}

void ClusterFaults::TakeAwayOnceLeftOut(NodeSlot slot, uint64_t looks) {
  cluster_.Later(kLookEvery, [this, slot, looks] {
    if (calm_ || looks == 0 || ordered_out_ != slot) return;
    if (!cluster_.observer().is_protected() || !cluster_.observer().IsLeftOut(slot)) {
      return TakeAwayOnceLeftOut(slot, looks - 1);
    }
    cluster_.Count("hosts taken away by an order");
    (void)cluster_.Destroy(cluster_.observer().machines().at(slot)->slot.value, DrawWhile());
  });
}

// Until it is known that nothing is ordered any more.
void ClusterFaults::TakeResizeBack(bool was_heeded) {
  cluster_.Later(milliseconds(1500) + DrawWhile(), [this, was_heeded] {
    if (!ordered_out_) return;
    cluster_.launcher().OrderResize(
        cluster_.machine(AnyPlace()), "", [this, was_heeded](const absl::Status& status) {
          if (!ordered_out_ || (!status.ok() && !absl::IsNotFound(status))) return;
          if (was_heeded) cluster_.AvoidNoMore(*ordered_out_);
          ordered_out_.reset();
          if (!calm_ && random_.OneIn(2)) cluster_.launcher().KillOne();
        });
    TakeResizeBack(was_heeded);
  });
}

}  // namespace unreft::sim
