// ClusterObserver: what the daemons of a simulated cluster say the job has decided, seen from
// outside after every event.
//
// It fails the trace when
//   * two daemons read different decisions of one round, or records go back,
//   * a version is committed that its groups do not protect (PROTOCOL rule 17): see GroupChecker,
//   * a decision names holders that do not hold, or an older version than was committed (History).
// Single-threaded.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "smp/member.h"
#include "tests/sim/cluster/group_checker.h"
#include "tests/sim/daemon_process.h"

namespace unreft::sim {

class ClusterObserver {
 public:
  ClusterObserver(World& world, MachinesBySlot machines)
      : world_(world), machines_(std::move(machines)) {}

  // Of that daemon.
  void AfterEvent(DaemonProcess& daemon);

  // That node's memory is gone.
  void OnDestroyed(NodeSlot slot) {
    destroyed_.insert(slot);
    is_protected_ = false;
  }
  // What was decided or committed last was found to be protected.
  bool is_protected() const { return is_protected_; }

  uint64_t commits_checked() const { return commits_checked_; }
  uint64_t decisions() const { return decisions_; }
  uint64_t views() const { return views_; }
  // Holders of decided versions whose slabs had to be decoded.
  uint64_t slabs_lost() const { return slabs_lost_; }

 private:
  void Look(NodeSlot slot, const meta::JobState& job);
  void OnView(NodeSlot slot, const meta::Stored<ViewRecord>& view);
  void OnDecision(NodeSlot slot, const TimelineRecord& record);
  void OnCommit(const meta::JobState& job);
  void CheckHolders(const DecisionRecord& decision);

  World& world_;
  const MachinesBySlot machines_;
  std::map<NodeSlot, meta::Revision> seen_;  // the revision of the newest record of each
  std::map<uint64_t, std::string> rounds_;   // what each round decided
  std::map<uint64_t, std::string> view_numbers_;
  std::optional<Version> decided_;
  std::set<NodeSlot> destroyed_;  // since the last decision
  bool is_protected_ = false;
  meta::Revision newest_commit_;
  uint64_t commits_checked_ = 0;
  uint64_t decisions_ = 0;
  uint64_t views_ = 0;
  uint64_t slabs_lost_ = 0;
};

}  // namespace unreft::sim
