// What the leader gives up, and where all ranks begin again. Pure.
//
// Giving up is one bound for the whole job: no version up to a step is committed any more but what
// is, and all ranks capture again from the next step on. It comes up to the oldest version that may
// still be committed, and no further: so ranks that drift apart meet there, however far apart they
// are, since the fastest of them keeps its snapshot of that step until the last has come to it.
// Where none is left, all begin beyond the fastest rank: as far as it comes until the others have
// heard of it, and farther each time that this was not enough.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/executor.h"
#include "base/ids.h"

namespace unreft::smp {

// A version of the newest timeline, neither committed nor given up.
struct StepUnderWay {
  Step step;
  std::optional<std::string> failure;  // why it is never committed; none: it may be
};

struct Abandonment {
  Step through;
  std::string reason;  // names the newest step that failed
};

// `under_way` ascends. `newest`: how far the ranks have come, as is believed of them; what one has
// named beyond it keeps nobody waiting. `lead`: how many steps beyond `newest` all begin again, if
// nothing is left that may be committed; 1 at least. None: nothing is to be given up.
std::optional<Abandonment> WhatToAbandon(std::span<const StepUnderWay> under_way, Step newest,
                                         uint64_t lead);

// How many steps the fastest ranks of a job do, by what is said of them now and then. What was so
// in one window alone is not believed: a daemon that hears of its ranks again leaps to where they
// are.
class StepPace {
 public:
  void Note(Step newest, Time now);
  // At least 1, at most kStepsApartMax.
  uint64_t StepsIn(Duration duration) const;

 private:
  static constexpr Duration kWindow = std::chrono::seconds(2);
  // Whoever begins to lead knows nothing of it, and has to say a step all the same.
  static constexpr Duration kFirstWindow = std::chrono::milliseconds(50);

  Step from_;
  Time since_{};
  bool begun_ = false;
  std::optional<double> found_;  // in the last window
  bool measured_ = false;        // in two
  double steps_per_second_ = 0;
};

}  // namespace unreft::smp
