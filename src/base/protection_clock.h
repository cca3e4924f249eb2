// ProtectionClock: whether what a job has trained is safe, by what was reported and committed.
//
//   protecting  <=>  something is committed, and the newest reported step is committed, or the
//                    oldest reported one that is not is younger than the limit: 60 s, or 5 times
//                    the usual distance of two commits if that is longer
//
// A step is reported when a trainer calls snapshot for it, whether that starts or is skipped. Its
// age is work at risk: as long as nothing is reported and no snapshot is under way, such as in a
// long evaluation, nothing ages, so that a pause is no alarm.
//
// A rule without a clock or a thread of its own: time comes in as an argument and never goes back.
// Memory is bounded; the age is exact to 1/64 of the limit. Single-threaded.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/executor.h"
#include "base/ids.h"

namespace unreft {

class ProtectionClock {
 public:
  static constexpr Duration kLimitMin = std::chrono::seconds(60);
  static constexpr int kUsualDistances = 5;

  // A recovery decision opened a timeline: steps of the one before are void and can be committed no
  // more. What it restored counts as committed now, since only work from here on is at risk; none
  // is a fresh start, after which nothing is committed. The usual distance stays: it is the job's.
  void Begin(std::optional<Step> restored, Time now);

  // A rank called snapshot for the step. A step may be told more than once, by each rank.
  void Reported(Step step, bool started, Time now);
  // What was started is skipped or given up by some rank: it is under way no more.
  void GivenUp(Step step);
  void Committed(Step step, Time now);

  bool ProtectingAt(Time now) const;
  // When it turns false if nothing more is told; none when it is false already or stays true.
  std::optional<Time> TurnsFalseAt(Time now) const;

  // The newest committed step and since when it is; none before the first commit.
  std::optional<Step> committed() const { return committed_; }
  std::optional<Duration> SinceCommit(Time now) const;
  // The oldest reported step that is not committed; none when the newest is.
  std::optional<Step> waiting() const;
  // How long ago it was reported.
  Duration WaitingFor(Time now) const;
  // Of the newest reported step of the timeline.
  std::optional<Step> newest() const { return newest_; }
  Duration limit() const;

 private:
  // Steps that were reported shortly after each other; their age is that of the first.
  struct Reports {
    Step first;
    Step last;
    Time since;
  };
  static constexpr size_t kReportsMax = 256;
  static constexpr int kReportsPerLimit = 64;
  static constexpr size_t kDistancesMax = 9;

  Time AgesUntil(Time now) const;

  std::deque<Reports> waiting_;  // ascending, all beyond committed_
  std::optional<Step> newest_;
  std::optional<Step> under_way_;  // the newest that was started, until it has ended
  Time last_report_{};
  std::optional<Step> committed_;
  Time committed_at_{};
  bool is_restored_ = false;        // committed_ is what the decision restored
  std::deque<Duration> distances_;  // of the last commits; the newest last
};

}  // namespace unreft
