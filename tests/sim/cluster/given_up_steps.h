// GivenUpSteps: what a job gave up, by all records of it that were seen, in any life of the store.
#pragma once

#include <unreft/cluster.pb.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>

#include "base/ids.h"

namespace unreft::sim {

class GivenUpSteps {
 public:
  void Add(const AbandonRecord& record) {
    bounds_.insert({record.timeline(), record.after_step(), record.through_step()});
  }

  bool Has(Version version) const {
    return std::ranges::any_of(bounds_, [&](const auto& bound) {
      const auto& [timeline, after, through] = bound;
      const uint64_t step = version.step.value;
      return version.timeline.value == timeline && step > after && step <= through;
    });
  }

 private:
  std::set<std::tuple<uint64_t, uint64_t, uint64_t>> bounds_;  // timeline, after step, through step
};

}  // namespace unreft::sim
