// Uncommitted: the steps that this rank has captured and that not all ranks have committed yet, and
// so why no memory is free for a snapshot. Single-threaded.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/ids.h"

namespace unreft::snapshot {

class Uncommitted {
 public:
  void Captured(Step step) {
    if (steps_.size() == kStepsMax) steps_.erase(steps_.begin());
    steps_.push_back(step);
  }
  // What is older is replaced by it.
  void Committed(Step step) {
    std::erase_if(steps_, [&](Step captured) { return captured <= step; });
  }
  void Abandoned(Step step) { std::erase(steps_, step); }
  void Clear() { steps_.clear(); }

  // `had_memory`: there was some for an earlier snapshot of the same tensors.
  std::string WhyNoneIsFree(bool connected, bool had_memory) const {
    if (!connected) return "the daemon is away, and left no memory free for a snapshot";
    if (!had_memory) return "the memory for the snapshots is still being prepared";
    if (steps_.empty()) return "the daemon has not freed the memory for the next snapshot yet";
    if (steps_.size() == 1) {
      return fmt::format("the snapshot of step {} is not committed yet by all ranks", steps_[0]);
    }
    return fmt::format(
        "the last {} snapshots, of steps {} to {}, are not committed yet by all ranks",
        steps_.size(), steps_.front(), steps_.back());
  }

 private:
  static constexpr size_t kStepsMax = 64;  // more than a rank has slots

  std::vector<Step> steps_;  // ascending
};

}  // namespace unreft::snapshot
