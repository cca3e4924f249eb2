#include "smp/job/newest_steps.h"

#include <algorithm>
#include <iterator>

namespace unreft::smp {

void NewestSteps::Note(uint64_t who, Step step) {
  Step& named = named_[who];
  named = std::max(named, step);
}

Step NewestSteps::Believed() const {
  StepCounts steps;
  for (const auto& [who, step] : named_) ++steps[step];
  return std::max(begun_, BelievedOf(steps));
}

Step BelievedOf(const StepCounts& named) {
  if (named.empty()) return Step{};
  auto newest = named.begin();
  for (auto next = std::next(newest); next != named.end(); newest = next++) {
    const bool has_others = newest->second > 1;
    if (has_others || newest->first.value - next->first.value <= kStepsApartMax) break;
  }
  return newest->first;
}

}  // namespace unreft::smp
