// Absences: which nodes are away, and since when. A node that is away for longer than its grace is
// lost. It is away while its slot shows another memory than the one that the view names, too.
#pragma once

#include <map>
#include <optional>

#include "base/executor.h"
#include "base/ids.h"
#include "meta/job_store.h"

namespace unreft::smp {

// Single-threaded.
class Absences {
 public:
  explicit Absences(Duration grace) : grace_(grace) {}

  // Who is present now, of node slots 0 to `nodes` - 1, of which the view names the memories, if
  // there is one. The grace of one that has said good-bye
  // begins when its lease ends: as if it had been killed.
  void Follow(const meta::JobState& records, const ViewRecord& view, uint64_t nodes, Time now);
  // Nobody's grace has begun.
  void Forget() { since_.clear(); }

  bool IsOverdue(NodeSlot slot, Time now) const;
  // When the next grace ends; none while none runs.
  std::optional<Time> NextEnd(Time now) const;
  Duration grace() const { return grace_; }

 private:
  const Duration grace_;
  std::map<NodeSlot, Time> since_;
};

}  // namespace unreft::smp
