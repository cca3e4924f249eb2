// Standstill: when a job commits nothing for longer than it should, and how often that is said.
//
// By the rule of base/protection_clock.h, on what all nodes report to the leader: what stands in
// the way is known after a few seconds, and logged when that long without a commit is no pause of
// the job's own, and again each time that it has lasted twice as long.
#pragma once

#include <absl/functional/function_ref.h>

#include <string>

#include "base/log.h"
#include "base/protection_clock.h"

namespace unreft::smp {

// Single-threaded.
class Standstill {
 public:
  explicit Standstill(Log& log) : log_(log) {}

  struct Progress {
    Timeline timeline;  // the newest
    Version committed;  // as the record says; of an earlier timeline: what was restored
    bool has_committed = false;
    Step reached;           // by the ranks, in the newest timeline
    Step abandoned_through;  // in the newest timeline
  };
  // `what_is_missing`: asked for when it is to be said.
  void Look(const Progress& progress, Time now, absl::FunctionRef<std::string()> what_is_missing);

  // What stands in the way of the next commit, for people; empty while nothing has for long.
  const std::string& obstacle() const { return obstacle_; }

 private:
  void Say(const Progress& progress, Time now);

  Log& log_;
  ProtectionClock clock_;
  Timeline timeline_;  // that the clock is of
  std::string obstacle_;
  bool said_ = false;
  Time said_at_{};
  Duration say_again_after_{};
};

}  // namespace unreft::smp
