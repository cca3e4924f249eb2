// AbandonedSteps: what a job gave up, by all records of it that were seen, in any life of the
// store.
#pragma once

#include <unreft/cluster.pb.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>

#include "base/ids.h"

namespace unreft::sim {

class AbandonedSteps {
 public:
  void Add(const AbandonRecord& record) {
    const uint64_t from = record.has_after_step() ? record.after_step() + 1 : 0;
    bounds_.insert({record.timeline(), from, record.through_step()});
  }

  bool Has(Version version) const {
    return std::ranges::any_of(bounds_, [&](const auto& bound) {
      const auto& [timeline, from, through] = bound;
      const uint64_t step = version.step.value;
      return version.timeline.value == timeline && step >= from && step <= through;
    });
  }

 private:
  std::set<std::tuple<uint64_t, uint64_t, uint64_t>> bounds_;  // timeline, from, through step
};

}  // namespace unreft::sim
