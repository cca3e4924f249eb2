// StandstillChecker: that commits never stand still unseen in a simulated cluster, looked at during
// the whole run.
//
// It fails the trace when
//   * nothing is committed for longer than kCommitWithin and kSnapshotsWithin of the slowest rank,
//     and a node for each slot, all ranks and the store are there and reach each other all that
//     time, but for nodes that were lost when the job restarted, and no snapshot fails: the version
//     is then given up, and ranks that nothing holds together need as long as they are apart until
//     they meet at another step,
//   * nothing is committed for longer than kSaidWithin, the store answers and has the job's
//     records, ranks train, and one of them was told of nothing that stands in the way all that
//     time,
//   * a node is told that a node or a rank is missing which is there for longer than kSeenWithin.
// Who is there is what the fakes know: no daemon is asked. Single-threaded.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/cluster/cluster.h"

namespace unreft::sim {

// Nodes and ranks that a text says are missing, and that it says of others.
struct NamedMissing {
  std::set<NodeSlot> nodes;
  std::set<Rank> ranks;  // that have not registered
};
NamedMissing MissingBy(const std::string& obstacle);

class StandstillChecker {
 public:
  // What stands in the way is known to the leader after ten seconds without a commit: where nothing
  // does, a commit comes before. Nothing in it is as long as the deadline of a version.
  static constexpr Duration kCommitWithin = std::chrono::seconds(10);
  // Nor before the slowest rank could have taken so many: of ranks that nothing holds together, and
  // that snapshot rarely, each version that fails costs some.
  static constexpr uint64_t kSnapshotsWithin = 12;
  // Until the leader knows, and its daemons have looked, which they do every five seconds.
  static constexpr Duration kSaidWithin = std::chrono::seconds(17);
  // Until a lease is over, a grace, and the next report is answered.
  static constexpr Duration kSeenWithin = std::chrono::seconds(8);

  explicit StandstillChecker(Cluster& cluster) : cluster_(cluster) {}

  // Looks now and then.
  void AfterEvent();

 private:
  using RankOf = std::pair<Attempt, Rank>;
  // A state that has to last without a break, and since when it does.
  class Since {
   public:
    // How long it does, this moment included.
    Duration Hold(bool holds, Duration now);

   private:
    std::optional<Duration> since_;
  };

  void Look();
  bool IsThere(NodeSlot slot);
  void FollowAttempt();
  bool IsDoneWithout(NodeSlot slot) const;
  bool IsCommittable(const TrainerProcess& trainer);
  bool StoreAnswers();
  uint64_t SlowestStep();
  void CheckCommits(bool all_are_there);
  void CheckWords(bool is_new);
  void CheckNames();

  Cluster& cluster_;
  Duration look_next_{};
  uint64_t commits_ = 0;
  uint64_t attempt_ = 0;
  std::set<NodeSlot> lost_;  // since before that attempt began
  uint64_t refused_ = 0;  // snapshots of the ranks that are there
  std::optional<Duration> armed_since_;
  uint64_t armed_at_ = 0;                              // the slowest rank's step then
  std::optional<std::pair<size_t, uint64_t>> leader_;  // place and life
  std::map<RankOf, Duration> untold_since_;
  std::map<NodeSlot, std::pair<size_t, uint64_t>> daemons_;  // place and life
  std::map<NodeSlot, Since> nodes_;
  std::map<RankOf, Since> ranks_;
  std::map<NodeSlot, Duration> nodes_there_for_;
  std::map<Rank, Duration> ranks_there_for_;  // of the present attempt
};

}  // namespace unreft::sim
