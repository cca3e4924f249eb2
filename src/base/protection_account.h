// ProtectionAccount: the ProtectionClock of a job, with what stands in the way of the next commit,
// in words.
//
// Used by a trainer's client, for its own snapshots, and by the daemon, for those of all ranks that
// it sees. Memory is bounded. Single-threaded.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "base/protection_clock.h"

namespace unreft {

class ProtectionAccount {
 public:
  void Begin(std::optional<Step> restored, Time now);
  void Started(Step step, Time now);
  void Skipped(Step step, const std::string& why, Time now);
  // Also told of what was skipped, and again: each step counts once.
  void GaveUp(Step step, const std::string& why);
  void Committed(Step step, Time now);

  const ProtectionClock& clock() const { return clock_; }
  // Since the last commit.
  uint64_t skipped() const { return skipped_.count; }
  uint64_t given_up() const { return given_up_.count; }

  // A whole sentence or two for a user: since when, how many snapshots failed, why the last of them
  // did, and what to do. `obstacle`: what is known beside that to stand in the way, such as a rank
  // that never registered; empty when nothing is. `advice` says what to do about it. Empty when it
  // is protecting.
  std::string WhyNot(const std::string& obstacle, const std::string& advice, Time now) const;

 private:
  static constexpr size_t kFailedMax = 256;

  struct Failures {
    uint64_t count = 0;
    Step last;
    std::string why;  // of the last
  };

  bool IsNews(Step step);

  ProtectionClock clock_;
  Failures skipped_;
  Failures given_up_;
  std::set<Step> failed_;  // that were counted; the newest
};

// "75 s", "12 min", "3.5 h".
std::string ForPeople(Duration duration);

}  // namespace unreft
