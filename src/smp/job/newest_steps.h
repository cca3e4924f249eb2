// NewestSteps: how far a job has come, by what each of its ranks - or nodes - has named. Pure.
//
// All ranks capture again from the step after it, so none may set it for the others: they train in
// step, and one that is far ahead of all the rest is not believed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/ids.h"

namespace unreft::smp {

// More than ranks of one job are ever apart.
inline constexpr uint64_t kStepsApartMax = 1024;

// How many name each step, the newest step first.
using StepCounts = std::map<Step, uint64_t, std::greater<>>;

// The newest but those that nobody else comes near; of one alone, what it says; 0 of nobody.
Step BelievedOf(const StepCounts& named);

class NewestSteps {
 public:
  // Nobody has named one beyond `begun` yet.
  explicit NewestSteps(Step begun = Step{}) : begun_(begun) {}

  void Note(uint64_t who, Step step);
  // The newest but those that nobody else comes near; of one alone, what it says.
  Step Believed() const;

 private:
  Step begun_;
  std::map<uint64_t, Step> named_;
};

}  // namespace unreft::smp
