// ClusterFaults: what goes wrong in a simulated cluster, and when, drawn from the seed.
//
// Each run has some kinds of fault and not others, so that every mixture comes up. A kind is a row
// of the table in cluster_faults.cc and a method; what is to end again undoes itself later, and at
// the latest in Calm. Single-threaded.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/random.h"
#include "tests/sim/cluster/cluster.h"

namespace unreft::sim {

class ClusterFaults {
 public:
  ClusterFaults(Cluster& cluster, Random random, bool store_losses);

  // From now on, until Calm.
  void Start() { Plan(); }
  // Nothing goes wrong any more, and all processes run.
  void Calm();

  uint64_t injected() const { return injected_; }
  // In which nothing new goes wrong, all together; the run is so much longer.
  Duration quiet_time() const { return quiet_time_; }

  struct Kind {
    std::string_view name;
    uint64_t weight;  // among the kinds of a run
    uint64_t one_in;  // how many runs have it
    void (ClusterFaults::*inject)();
    bool loses_store = false;
    // Whether a run has it is drawn beside the others: runs without it are as they were.
    bool is_beside = false;
  };
  static const std::vector<Kind>& AllKinds();

 private:
  void Plan();
  size_t AnyPlace() { return random_.Below(cluster_.size()); }
  size_t LeaderPlace() { return cluster_.LeaderPlace().value_or(AnyPlace()); }
  Duration DrawWhile();
  Duration DrawAway();

  // The kinds.
  void KillTrainer() { cluster_.launcher().KillOne(); }
  void KillDaemon() { Kill(AnyPlace()); }
  void KillLeader() { Kill(LeaderPlace()); }
  void KillHostProcesses();
  void KillStore();
  void LoseMessages();
  void SlowMessages();
  void BlockOneWay();
  void Isolate();
  void LoseStore();
  void RollBackStore();
  void CutOffFromStore();
  void LoseKvAnswers();
  void FillStore();
  void SuspendDaemon() { Suspend(AnyPlace()); }
  void SuspendLeader() { Suspend(LeaderPlace()); }
  void KillDaemonForLong();
  void DestroyNodes();
  void DestroyAgain();
  void DestroyForLong();
  void GoOnWithout() { GoOnWithoutOnceProtected(kLooksMax); }
  void GoOnWithoutOnceProtected(uint64_t looks);
  void RemoveMemory();
  void FlipSlotBits() { FlipBits(false); }
  void FlipGuardBits() { FlipBits(true); }
  void FillMemory();
  void FailDiskWrites();
  void FillDisk();
  void OtherWorld();
  void ReplicaGoesAstray();
  void BringOldMemoryBack();
  void PinCommitted();
  void Upgrade();
  void Misstart() { Misstart(AnyPlace(), DrawAway()); }
  void MisstartInNewStore();
  void StartSecond();
  void StartSecondLauncher() { StartSecondOnceAllTrain(kLooksMax / 8); }
  void OrderRewind();
  void AskForAnEarlierStep();
  void OrderFreshStart();
  void OrderResize();
  void LetPass();
  void LoseAllMemory() { LoseAllMemoryOnceProtected(kLooksMax / 4); }
  void LoseAllMemoryOnceProtected(uint64_t looks);
  void KillDaemonForVeryLong();

  // For the moment in which a loss is made good and nothing newer is committed, or all is
  // protected.
  static constexpr Duration kLookEvery = std::chrono::milliseconds(1);
  static constexpr uint64_t kLooksMax = 8000;

  void BeQuietFor(Duration duration);
  void StartSecondOnceAllTrain(uint64_t looks);
  bool WriteCopy();
  std::optional<Step> DrawEarlierStep();
  void TakeRewindBack();
  void OrderFreshStart(bool force, uint64_t times);
  void TakeAwayOnceLeftOut(NodeSlot slot, uint64_t looks);
  void TakeResizeBack(bool was_heeded);
  void Misstart(size_t place, Duration away);
  smp::NodeOptions DrawOtherOptions();
  void DestroyOnceMadeGood(uint64_t losses_before, uint64_t looks);
  void FlipBits(bool of_guards);
  void RestartStoreLater();
  void Kill(size_t place);
  void Suspend(size_t place);

  Cluster& cluster_;
  Random random_;
  std::vector<const Kind*> kinds_;
  std::deque<FakeKvStore::Copy> copies_;  // of the store's disk, the last few
  bool calm_ = false;
  Duration quiet_until_{};
  Duration quiet_time_{};
  std::optional<NodeSlot> ordered_out_;  // by a resize that is not taken back yet
  uint64_t injected_ = 0;
};

}  // namespace unreft::sim
