#include "tests/sim/cluster/cluster_faults.h"

#include <string_view>
#include <utility>

namespace unreft::sim {

using std::chrono::milliseconds;

namespace {

constexpr size_t kCopiesKept = 8;

}  // namespace

const std::vector<ClusterFaults::Kind>& ClusterFaults::AllKinds() {
  using Self = ClusterFaults;
  static const std::vector<Kind> kKinds = {
      {"kill a trainer", 3, 1, &Self::KillTrainer},
      {"kill a daemon", 3, 1, &Self::KillDaemon},
      {"kill the leader's daemon", 2, 2, &Self::KillLeader},
      {"kill a daemon and a trainer", 2, 2, &Self::KillHostProcesses},
      {"kill the meta store", 1, 3, &Self::KillStore},
      {"lose the meta store", 1, 6, &Self::LoseStore, true},
      {"roll back the meta store", 1, 6, &Self::RollBackStore, true},
      {"lose messages", 2, 3, &Self::LoseMessages},
      {"delay and double messages", 2, 3, &Self::SlowMessages},
      {"block one way", 2, 3, &Self::BlockOneWay},
      {"isolate a node", 1, 3, &Self::Isolate},
      {"cut a node off from the store", 2, 3, &Self::CutOffFromStore},
      {"lose answers of the store", 2, 3, &Self::LoseKvAnswers},
      {"suspend a daemon", 2, 3, &Self::SuspendDaemon},
      {"suspend the leader", 2, 3, &Self::SuspendLeader},
      {"destroy nodes", 4, 2, &Self::DestroyNodes},
  };
  return kKinds;
}

ClusterFaults::ClusterFaults(Cluster& cluster, Random random, bool store_losses)
    : cluster_(cluster), random_(random) {
  for (const Kind& kind : AllKinds()) {
    if (kind.loses_store && !store_losses) continue;
    if (random_.OneIn(kind.one_in)) kinds_.insert(kinds_.end(), kind.weight, &kind);
  }
}

void ClusterFaults::Plan() {
  const Duration pause(random_.Below(cluster_.options().fault_pause_max.count()));
  cluster_.Later(pause, [this] {
    if (calm_) return;
    copies_.push_back(cluster_.store().TakeCopy());
    if (copies_.size() > kCopiesKept) copies_.pop_front();
    const Kind& kind = *kinds_[random_.Below(kinds_.size())];
    ++injected_;
    cluster_.trace().Add("fault: {}", kind.name);
    cluster_.Count(fmt::format("fault: {}", kind.name));
    (this->*kind.inject)();
    Plan();
  });
}

Duration ClusterFaults::DrawWhile() {
  return milliseconds(random_.Below(random_.OneIn(3) ? 3000 : 200));
}

Duration ClusterFaults::DrawAway() {
  return milliseconds(random_.Below(random_.OneIn(4) ? 4000 : 50));
}

// --- processes ---

void ClusterFaults::Kill(size_t slot) { cluster_.KillDaemon(slot, DrawAway()); }

void ClusterFaults::KillHostProcesses() {
  cluster_.launcher().KillOne();
  Kill(AnySlot());
}

void ClusterFaults::Suspend(size_t slot) {
  if (cluster_.daemon(slot) == nullptr) return;
  cluster_.daemon(slot)->executor().Suspend();
  cluster_.Later(DrawWhile(), [this, slot, life = cluster_.life(slot)] {
    if (life == cluster_.life(slot)) cluster_.daemon(slot)->executor().Resume();
  });
}

// As many as a group must stand, and not before the last loss is made good.
void ClusterFaults::DestroyNodes() {
  if (!cluster_.observer().is_protected()) return;
  const uint64_t count = 1 + random_.Below(cluster_.options().node.parity_chunks);
  for (uint64_t i = 0; i < count; ++i) cluster_.Destroy(AnySlot(), DrawAway());
}

// --- the network ---

void ClusterFaults::LoseMessages() {
  SimTransportOptions& options = cluster_.network().options();
  options.lose_one_in = static_cast<uint32_t>(3 + random_.Below(30));
  options.cut_one_in = static_cast<uint32_t>(3 + random_.Below(30));
  cluster_.Later(DrawWhile(), [this] {
    cluster_.network().options().lose_one_in = 0;
    cluster_.network().options().cut_one_in = 0;
  });
}

void ClusterFaults::SlowMessages() {
  SimTransportOptions& options = cluster_.network().options();
  options.slow_one_in = static_cast<uint32_t>(2 + random_.Below(20));
  options.duplicate_one_in = static_cast<uint32_t>(2 + random_.Below(20));
  cluster_.Later(DrawWhile(), [this] {
    cluster_.network().options().slow_one_in = 0;
    cluster_.network().options().duplicate_one_in = 0;
  });
}

void ClusterFaults::BlockOneWay() {
  const std::string from = cluster_.Address(AnySlot());
  const std::string to = cluster_.Address(AnySlot());
  cluster_.network().Block(from, to);
  cluster_.Later(DrawWhile(), [this, from, to] { cluster_.network().Unblock(from, to); });
}

void ClusterFaults::Isolate() {
  const std::string address = cluster_.Address(AnySlot());
  cluster_.network().Isolate(address);
  cluster_.Later(DrawWhile(), [this, address] { cluster_.network().Rejoin(address); });
}

// --- the meta store ---

void ClusterFaults::KillStore() {
  if (!cluster_.store().running()) return;
  cluster_.store().Kill();
  RestartStoreLater();
}

// It comes back empty.
void ClusterFaults::LoseStore() {
  if (!cluster_.store().running()) return;
  cluster_.store().Kill();
  cluster_.store().LoseData();
  cluster_.observer().OnStoreChanged();
  RestartStoreLater();
}

void ClusterFaults::RollBackStore() {
  if (!cluster_.store().running()) return;
  cluster_.store().Kill();
  cluster_.store().RollBack(copies_[random_.Below(copies_.size())]);
  cluster_.observer().OnStoreChanged();
  RestartStoreLater();
}

void ClusterFaults::RestartStoreLater() {
  cluster_.Later(DrawWhile(), [this] {
    if (!cluster_.store().running()) cluster_.store().Restart();
  });
}

void ClusterFaults::CutOffFromStore() {
  const size_t slot = random_.OneIn(2) ? LeaderSlot() : AnySlot();
  if (cluster_.daemon(slot) == nullptr) return;
  cluster_.store().CutOff(cluster_.daemon(slot)->executor());
  cluster_.Later(DrawWhile(), [this, slot, life = cluster_.life(slot)] {
    if (life == cluster_.life(slot)) cluster_.store().Mend(cluster_.daemon(slot)->executor());
  });
}

void ClusterFaults::LoseKvAnswers() {
  cluster_.store().set_lose_one_in(2 + random_.Below(20));
  cluster_.Later(DrawWhile(), [this] { cluster_.store().set_lose_one_in(0); });
}

// --- calm ---

void ClusterFaults::Calm() {
  calm_ = true;
  cluster_.trace().Add("calm");
  SimTransportOptions& options = cluster_.network().options();
  options.lose_one_in = options.cut_one_in = 0;
  options.slow_one_in = options.duplicate_one_in = 0;
  cluster_.store().set_lose_one_in(0);
  if (!cluster_.store().running()) cluster_.store().Restart();
  for (size_t slot = 0; slot < cluster_.size(); ++slot) {
    cluster_.network().Rejoin(cluster_.Address(slot));
    for (size_t to = 0; to < cluster_.size(); ++to) {
      cluster_.network().Unblock(cluster_.Address(slot), cluster_.Address(to));
    }
    if (cluster_.daemon(slot) == nullptr) {
      cluster_.StartDaemon(slot);
    } else {
      cluster_.store().Mend(cluster_.daemon(slot)->executor());
      cluster_.daemon(slot)->executor().Resume();
    }
  }
}

}  // namespace unreft::sim
