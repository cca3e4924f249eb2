// ProtectionWatch: whether what the job trains is safe, as this node sees it. It says in the log
// when protection is lost and when it is back, and tells the trainers which rank stands in the way.
//
// The rule is base/protection_clock.h, on what this node's ranks report and what is committed; the
// account of it lies in NodeState, where the desks write it.
#pragma once

#include <optional>
#include <string>

#include "smp/desk/node_state.h"

namespace unreft::smp {

enum class JobPhase {
  kNotBegun,  // no rank was ever here, nothing was ever committed
  kRunning,
  kEnded,  // no rank is connected: it has ended, or is between two attempts
};

// What is said of the job's protection; of a job that does not run, neither yes nor no.
struct JobProtection {
  JobPhase phase = JobPhase::kNotBegun;
  bool protecting = false;
  std::optional<Duration> since_commit;  // while it runs; none before the first commit
  std::string why_not;                   // for people; empty while it is protecting
};
JobProtection ProtectionOf(const NodeState& state);

// "protected", "unprotected", "not begun", "ended".
std::string_view ProtectionName(const JobProtection& protection);

// A rank that keeps every version from being committed, in words: it is not there, has not
// registered, or takes no snapshots. Empty when none of those that this node knows does.
std::string FindObstacle(const NodeState& state);

// Single-threaded on the node's executor.
class ProtectionWatch {
 public:
  explicit ProtectionWatch(NodeState& state) : state_(state) {}
  ~ProtectionWatch();

  // Ranks came or went, or something was reported: looks now and then from here on.
  void Wake();
  // Looks at once.
  void Look();
  // One that was not told anything before.
  void Greet(RankSession& session);

 private:
  void Warn(const std::string& why);

  NodeState& state_;
  TimerId timer_ = TimerId::kNone;
  std::string obstacle_;  // told to the trainers
  bool lost_ = false;     // and said so
  Time lost_at_{};
  Time warned_at_{};
  Duration warn_again_after_{};
};

}  // namespace unreft::smp
