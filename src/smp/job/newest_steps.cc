#include "smp/job/newest_steps.h"

#include <algorithm>
#include <iterator>

namespace unreft::smp {

void NewestSteps::Note(uint64_t who, Step step) {
  Step& named = named_[who];
  named = std::max(named, step);
}

Step NewestSteps::Believed() const {
  std::multiset<Step, std::greater<>> steps;
  for (const auto& [who, step] : named_) steps.insert(step);
  return std::max(begun_, BelievedOf(steps));
}

Step BelievedOf(const std::multiset<Step, std::greater<>>& named) {
  if (named.empty()) return Step{};
  auto newest = named.begin();
  for (auto next = std::next(newest); next != named.end(); newest = next++) {
    if (newest->value - next->value <= kStepsApartMax) break;
  }
  return *newest;
}

}  // namespace unreft::smp
