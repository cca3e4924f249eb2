#include "tests/sim/cluster/cluster_faults.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

namespace unreft::sim {

using std::chrono::milliseconds;

namespace {

constexpr size_t kCopiesKept = 8;
// Into the calm: by then what can begin by itself has begun.
constexpr Duration kOperatorLooks = std::chrono::seconds(10);

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
      {"fill the store's disk", 1, 4, &Self::FillStore},
      {"suspend a daemon", 2, 3, &Self::SuspendDaemon},
      {"suspend the leader", 2, 3, &Self::SuspendLeader},
      {"a daemon is away for long", 2, 3, &Self::KillDaemonForLong},
      {"destroy nodes", 4, 2, &Self::DestroyNodes},
      {"destroy nodes, and then others", 2, 3, &Self::DestroyAgain},
      {"destroy a node for long", 2, 3, &Self::DestroyForLong},
      {"remove a node's memory", 2, 3, &Self::RemoveMemory},
      {"flip bits of slots", 3, 3, &Self::FlipSlotBits},
      {"flip bits of guards", 2, 3, &Self::FlipGuardBits},
      {"fill a node's memory", 1, 4, &Self::FillMemory},
      {"fail disk writes", 2, 3, &Self::FailDiskWrites},
      {"fill a disk", 1, 4, &Self::FillDisk},
      {"restart with another world", 4, 2, &Self::OtherWorld},
      {"a replica goes astray", 2, 2, &Self::ReplicaGoesAstray},
      {"a node's old memory comes back", 2, 4, &Self::BringOldMemoryBack},
      {"what is committed is pinned", 8, 1, &Self::PinCommitted},
      {"upgrade a daemon", 3, 5, &Self::Upgrade, false, true},
      {"start a daemon with other options", 2, 7, &Self::Misstart, false, true},
      {"start a daemon with other options in a new store", 2, 8, &Self::MisstartInNewStore, true,
       true},
      {"start a second daemon of a node", 3, 7, &Self::StartSecond, false, true},
      {"start a second launcher", 2, 4, &Self::StartSecondLauncher, false, true},
      {"order a rewind", 2, 4, &Self::OrderRewind, false, true},
      {"order a fresh start", 2, 8, &Self::OrderFreshStart, false, true},
      {"nothing goes wrong for a while", 1, 8, &Self::LetPass, false, true},
      {"a daemon is away until that is said", 1, 20, &Self::KillDaemonForVeryLong, false, true},
      {"go on without a node", 6, 3, &Self::GoOnWithout, false, true},
      {"ranks ask for an earlier step", 2, 4, &Self::AskForAnEarlierStep, false, true},
      {"order a resize", 4, 3, &Self::OrderResize, false, true},
      {"write a durable copy and lose all memory", 8, 2, &Self::LoseAllMemory, false, true},
  };
  return kKinds;
}

ClusterFaults::ClusterFaults(Cluster& cluster, Random random, bool store_losses)
    : cluster_(cluster), random_(random) {
  const ClusterOptions& options = cluster_.options();
  Random beside = random_;
  for (const Kind& kind : AllKinds()) {
    if (kind.loses_store && !store_losses) continue;
    if (kind.inject == &ClusterFaults::ReplicaGoesAstray && !options.replicated) continue;
    if (kind.inject == &ClusterFaults::PinCommitted && options.node.pins == 0) continue;
    if (kind.inject == &ClusterFaults::LoseAllMemory && !options.has_copies) continue;
    const bool always = options.spares > 0 && (kind.inject == &ClusterFaults::DestroyForLong ||
                                               kind.inject == &ClusterFaults::KillDaemonForLong);
    // It is then that a slot has another memory when its daemon returns.
    const bool often = options.spares > 0 && kind.inject == &ClusterFaults::KillDaemonForVeryLong;
    const uint64_t one_in = always ? 1 : often ? 4 : kind.one_in;
    Random& random = kind.is_beside ? beside : random_;
    if (random.OneIn(one_in)) kinds_.insert(kinds_.end(), kind.weight * (often ? 4 : 1), &kind);
  }
}

void ClusterFaults::Plan() {
  Duration pause(random_.Below(cluster_.options().fault_pause_max.count()));
  pause += std::max(Duration{}, quiet_until_ - cluster_.now());
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

void ClusterFaults::Kill(size_t place) { cluster_.KillDaemon(place, DrawAway()); }

void ClusterFaults::KillHostProcesses() {
  cluster_.launcher().KillOne();
  Kill(AnyPlace());
}

void ClusterFaults::Suspend(size_t place) {
  if (cluster_.daemon(place) == nullptr) return;
  cluster_.daemon(place)->executor().Suspend();
  cluster_.Later(DrawWhile(), [this, place, life = cluster_.life(place)] {
    if (life == cluster_.life(place)) cluster_.daemon(place)->executor().Resume();
  });
}

// Until it is lost, and a spare has its slot, if there is one; its trainers live on.
void ClusterFaults::KillDaemonForLong() {
  cluster_.KillDaemon(AnyPlace(), milliseconds(1500 + random_.Below(3000)));
}

void ClusterFaults::BeQuietFor(Duration duration) {
  quiet_until_ = cluster_.now() + duration;
  quiet_time_ += duration;
}

// What was broken before is mended, and no attempt begins anew for that.
void ClusterFaults::LetPass() {
  if (quiet_time_ == Duration{}) BeQuietFor(std::chrono::seconds(12));
}

// Without a spare until the others have said that it is missing; with one for shorter. Then as long
// as it takes until whoever is not protected after its return must have been told.
void ClusterFaults::KillDaemonForVeryLong() {
  if (quiet_time_ > Duration{}) return;  // it takes long enough once
  const uint64_t seconds_min = cluster_.options().spares > 0 ? 3 : 18;
  const Duration away = std::chrono::seconds(seconds_min + random_.Below(4));
  cluster_.KillDaemon(AnyPlace(), away);
  BeQuietFor(away + std::chrono::seconds(20));
}

// As many as a group must stand, and not before the last loss is made good.
void ClusterFaults::DestroyNodes() {
  if (!cluster_.observer().is_protected()) return;
  const uint64_t count = 1 + random_.Below(cluster_.options().node.parity_chunks);
  for (uint64_t i = 0; i < count; ++i) (void)cluster_.Destroy(AnyPlace(), DrawAway());
}

// As soon as what they held is rebuilt and guarded elsewhere, as many may go once more.
void ClusterFaults::DestroyAgain() {
  if (!cluster_.observer().is_protected()) return;
  DestroyNodes();
  DestroyOnceMadeGood(cluster_.observer().losses_made_good(), kLooksMax);
}

void ClusterFaults::DestroyOnceMadeGood(uint64_t losses_before, uint64_t looks) {
  cluster_.Later(kLookEvery, [this, losses_before, looks] {
    if (calm_ || looks == 0) return;
    if (cluster_.observer().losses_made_good() == losses_before) {
      return DestroyOnceMadeGood(losses_before, looks - 1);
    }
    if (cluster_.observer().is_protected()) cluster_.Count("losses on losses");
    DestroyNodes();
  });
}

// Until a spare has its slot, if there is one.
void ClusterFaults::DestroyForLong() {
  if (!cluster_.observer().is_protected()) return;
  (void)cluster_.Destroy(AnyPlace(), milliseconds(1000 + random_.Below(2000)));
}

// It is destroyed, and the job restarts on the others, with as many ranks or fewer; later another
// host has its number, or a spare has its slot, and ranks are there again with the next restart.
void ClusterFaults::GoOnWithoutOnceProtected(uint64_t looks) {
  if (!cluster_.observer().is_protected()) {
    return cluster_.Later(kLookEvery, [this, looks] {
      if (!calm_ && looks > 0) GoOnWithoutOnceProtected(looks - 1);
    });
  }
  const smp::NodeOptions& options = cluster_.options().node;
  const NodeSlot slot{random_.Below(options.nodes)};
  if (!cluster_.Avoid(slot)) return;
  cluster_.Count("restarts without a node");
  const size_t place = cluster_.observer().machines().at(slot)->slot.value;
  Duration away = options.presence_ttl + options.lost_grace + DrawWhile();
  // Or for as long as it takes until those who are left must have committed.
  if (random_.OneIn(4) && quiet_time_ == Duration{}) {
    away += std::chrono::seconds(16);
    BeQuietFor(away);
  }
  if (random_.OneIn(2)) {
    cluster_.launcher().NextWorld(1 + random_.Below(cluster_.options().trainer.world));
  }
  (void)cluster_.Destroy(place, away);
  cluster_.Later(away + DrawWhile(), [this, slot] {
    if (calm_) return;
    cluster_.AvoidNoMore(slot);
    if (random_.OneIn(2)) cluster_.launcher().KillOne();
  });
}

// Now and then the copy alone is written, or the newest is damaged when it is needed.
void ClusterFaults::LoseAllMemoryOnceProtected(uint64_t looks) {
  if (calm_) return;
  if (!WriteCopy()) {
    return cluster_.Later(kLookEvery, [this, looks] {
      if (looks > 0) LoseAllMemoryOnceProtected(looks - 1);
    });
  }
  if (random_.OneIn(4)) return;
  cluster_.Later(milliseconds(random_.Below(500)), [this] {
    if (calm_) return;
    if (random_.OneIn(4) && cluster_.shelf().Damage(random_)) {
      cluster_.trace().Add("the newest durable copy is damaged");
      cluster_.Count("durable copies damaged");
    }
    cluster_.Count("times that all memory was lost");
    for (size_t place = 0; place < cluster_.size(); ++place) {
      (void)cluster_.Destroy(place, DrawAway());
    }
  });
}

// Of what is committed and protected; false if it cannot be written now.
bool ClusterFaults::WriteCopy() {
  const std::optional<Version> committed = cluster_.history().committed();
  if (!cluster_.observer().is_protected() || !committed) return false;
  // Of replicas that differ a copy has the first one's bytes alone.
  if (cluster_.history().IsAstray(*committed)) return false;
  const std::optional<size_t> leader = cluster_.LeaderPlace();
  if (!leader || cluster_.node(*leader) == nullptr) return false;
  std::vector<Machine*> machines;
  for (const auto& [slot, machine] : cluster_.observer().machines()) machines.push_back(machine);
  const TimelineRecord& timelines = cluster_.node(*leader)->member()->records().timeline.value;
  const uint64_t world = cluster_.history().WorldOf(*committed).value_or(0);
  if (!cluster_.shelf().Write(*committed, world, timelines, machines)) return false;
  cluster_.trace().Add("a durable copy of {} is written", *committed);
  cluster_.Count("durable copies");
  return true;
}

// Its trainers live on.
void ClusterFaults::RemoveMemory() {
  if (!cluster_.observer().is_protected()) return;
  cluster_.Empty(AnyPlace(), DrawAway());
}

// --- memory and disk ---

// Of one node or several, and often they are read at once: what is not restored is soon freed.
void ClusterFaults::FlipBits(bool of_guards) {
  const uint64_t count = 1 + random_.Below(cluster_.options().node.parity_chunks + 1);
  for (uint64_t i = 0; i < count; ++i) {
    Machine& machine = cluster_.machine(AnyPlace());
    const std::optional<Version> version = of_guards ? cluster_.spoiler().FlipBit(machine, random_)
                                                     : machine.observer.FlipBit(random_);
    const std::optional<NodeSlot> slot = cluster_.observer().SlotOf(machine);
    if (!version || !slot) continue;
    cluster_.observer().OnFlipped(*slot, *version);
    cluster_.pins().OnFlipped(machine, *version);
    cluster_.Count(of_guards ? "bits flipped in guards" : "bits flipped in slots");
  }
  if (random_.OneIn(2)) cluster_.launcher().KillOne();
}

// Trainers that come need room, and so do guards and slabs that are made anew.
void ClusterFaults::FillMemory() {
  Machine& machine = cluster_.machine(AnyPlace());
  machine.FillMemory(random_.Below(20000));
  if (random_.OneIn(2)) cluster_.launcher().KillOne();
  cluster_.Later(DrawWhile(), [&machine] { machine.FreeMemory(); });
}

void ClusterFaults::FailDiskWrites() {
  cluster_.machine(AnyPlace())
      .disk.FailWrites(static_cast<int>(1 + random_.Below(5)),
                       absl::UnavailableError("the disk failed"));
}

void ClusterFaults::FillDisk() {
  FakeDisk& disk = cluster_.machine(AnyPlace()).disk;
  disk.set_bytes_max(random_.Below(400));
  cluster_.Later(DrawWhile(), [&disk] { disk.set_bytes_max(UINT64_MAX); });
}

// Another host takes a node's place for a while, in which the job may decide and commit.
void ClusterFaults::BringOldMemoryBack() {
  if (!cluster_.observer().is_protected()) return;
  const size_t place = AnyPlace();
  auto old = std::make_shared<Machine::Host>(cluster_.Destroy(place, DrawAway()));
  const Duration replaced = milliseconds(random_.Below(random_.OneIn(2) ? 500 : 2500));
  cluster_.Later(replaced, [this, place, old] {
    if (!calm_) cluster_.BringBack(place, std::move(*old), DrawAway());
  });
}

// --- the job ---

void ClusterFaults::OtherWorld() {
  if (!cluster_.history().committed()) return;
  cluster_.launcher().NextWorld(1 + random_.Below(cluster_.options().world_max()));
  cluster_.launcher().KillOne();
}

// Or let go again.
void ClusterFaults::PinCommitted() {
  DaemonProcess* daemon = cluster_.daemon(AnyPlace());
  if (daemon == nullptr) return;
  const size_t owner = random_.Below(std::size(kPinOwners));
  PinRequest request;
  request.set_owner(kPinOwners[owner]);
  request.set_unpin(owner > 0 && random_.OneIn(2));
  request.set_for_ms(50 + random_.Below(random_.OneIn(4) ? 3000 : 500));
  daemon->executor().Deliver(Duration{}, [daemon, request] {
    if (daemon->node() == nullptr) return;
    daemon->node()->member()->AskPins(request, [](const absl::StatusOr<PinReply>&) {});
  });
}

void ClusterFaults::ReplicaGoesAstray() {
  cluster_.launcher().NextGoesAstray();
  cluster_.Count("replicas gone astray");
  if (random_.OneIn(2)) cluster_.launcher().KillOne();
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
  const std::string from = cluster_.Address(AnyPlace());
  const std::string to = cluster_.Address(AnyPlace());
  cluster_.network().Block(from, to);
  cluster_.Later(DrawWhile(), [this, from, to] { cluster_.network().Unblock(from, to); });
}

void ClusterFaults::Isolate() {
  const std::string address = cluster_.Address(AnyPlace());
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
  cluster_.pins().OnStoreChanged();
  RestartStoreLater();
}

void ClusterFaults::RollBackStore() {
  if (!cluster_.store().running()) return;
  cluster_.store().Kill();
  const FakeKvStore::Copy& copy = copies_[random_.Below(copies_.size())];
  const bool goes_back = copy != cluster_.store().TakeCopy();
  cluster_.store().RollBack(copy);
  if (goes_back) {
    cluster_.observer().OnStoreChanged();
    cluster_.pins().OnStoreChanged();
  }
  RestartStoreLater();
}

void ClusterFaults::RestartStoreLater() {
  cluster_.Later(DrawWhile(), [this] {
    if (!cluster_.store().running()) cluster_.store().Restart();
  });
}

void ClusterFaults::CutOffFromStore() {
  const size_t place = random_.OneIn(2) ? LeaderPlace() : AnyPlace();
  if (cluster_.daemon(place) == nullptr) return;
  cluster_.store().CutOff(cluster_.daemon(place)->executor());
  cluster_.Later(DrawWhile(), [this, place, life = cluster_.life(place)] {
    if (life == cluster_.life(place)) cluster_.store().Mend(cluster_.daemon(place)->executor());
  });
}

void ClusterFaults::LoseKvAnswers() {
  cluster_.store().set_lose_one_in(2 + random_.Below(20));
  cluster_.Later(DrawWhile(), [this] { cluster_.store().set_lose_one_in(0); });
}

void ClusterFaults::FillStore() {
  FakeDisk& disk = cluster_.store().disk();
  disk.set_bytes_max(random_.Below(2000));
  cluster_.Later(DrawWhile(), [&disk] { disk.set_bytes_max(UINT64_MAX); });
}

// --- calm ---

void ClusterFaults::Calm() {
  calm_ = true;
  cluster_.trace().Add("calm");
  cluster_.launcher().NextAtOrBefore(std::nullopt);
  cluster_.launcher().GiveUpCopies();
  SimTransportOptions& options = cluster_.network().options();
  options.lose_one_in = options.cut_one_in = 0;
  options.slow_one_in = options.duplicate_one_in = 0;
  cluster_.store().set_lose_one_in(0);
  cluster_.store().disk().set_bytes_max(UINT64_MAX);
  if (!cluster_.store().running()) cluster_.store().Restart();
  for (size_t place = 0; place < cluster_.places(); ++place) {
    cluster_.machine(place).FreeMemory();
    cluster_.machine(place).disk.set_bytes_max(UINT64_MAX);
    cluster_.machine(place).disk.FailWrites(0, absl::OkStatus());
    cluster_.network().Rejoin(cluster_.Address(place));
    for (size_t to = 0; to < cluster_.places(); ++to) {
      cluster_.network().Unblock(cluster_.Address(place), cluster_.Address(to));
    }
  }
  cluster_.AvoidNone();
  cluster_.StartAllRight();
  for (size_t place = 0; place < cluster_.places(); ++place) {
    if (cluster_.daemon(place) == nullptr) continue;
    cluster_.store().Mend(cluster_.daemon(place)->executor());
    cluster_.daemon(place)->executor().Resume();
  }
  cluster_.Later(kOperatorLooks, [this] { cluster_.StartMissing(); });
}

}  // namespace unreft::sim
