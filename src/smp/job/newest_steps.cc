#include "smp/job/newest_steps.h"

#include <algorithm>
#include <vector>

namespace unreft::smp {

void NewestSteps::Note(uint64_t who, Step step) {
  Step& named = named_[who];
  named = std::max(named, step);
}

Step NewestSteps::Believed() const {
  std::vector<Step> steps;
  for (const auto& [who, step] : named_) steps.push_back(step);
  std::ranges::sort(steps, std::greater<>());
  size_t newest = 0;
  while (newest + 1 < steps.size() &&
         steps[newest].value - steps[newest + 1].value > kStepsApartMax) {
    ++newest;
  }
  return steps.empty() ? begun_ : std::max(begun_, steps[newest]);
}

}  // namespace unreft::smp
