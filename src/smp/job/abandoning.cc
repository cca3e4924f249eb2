#include "smp/job/abandoning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "smp/job/newest_steps.h"

namespace unreft::smp {

std::optional<Abandonment> WhatToAbandon(std::span<const StepUnderWay> under_way, Step newest,
                                         uint64_t lead) {
  const StepUnderWay* failed = nullptr;
  const StepUnderWay* next = nullptr;
  for (const StepUnderWay& version : under_way) {
    if (version.step > newest) break;
    if (!version.failure) {
      next = &version;
      break;
    }
    failed = &version;
  }
  if (failed == nullptr) return std::nullopt;
  const uint64_t from = next != nullptr ? next->step.value : newest.value + lead;
  return Abandonment{Step{from - 1}, fmt::format("step {}: {}", failed->step, *failed->failure)};
}

void StepPace::Note(Step newest, Time now) {
  if (newest == Step{}) return;  // nobody has reported yet
  const bool is_other_timeline = newest < from_;
  const bool goes_on = begun_ && !is_other_timeline;
  if (goes_on && now - since_ < (measured_ ? kWindow : kFirstWindow)) return;
  if (goes_on) {
    const double seconds = std::chrono::duration<double>(now - since_).count();
    const double found = static_cast<double>(newest.value - from_.value) / seconds;
    const std::optional<double> before = std::exchange(found_, found);
    steps_per_second_ = before ? std::min(*before, found) : 0;
    measured_ = before.has_value();
  }
  begun_ = true;
  from_ = newest;
  since_ = now;
}

uint64_t StepPace::StepsIn(Duration duration) const {
  const double steps = steps_per_second_ * std::chrono::duration<double>(duration).count();
  return static_cast<uint64_t>(
      std::clamp(std::ceil(steps), 1.0, static_cast<double>(kStepsApartMax)));
}

}  // namespace unreft::smp
