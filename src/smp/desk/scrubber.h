// Scrubber: reads sealed slots again from time to time, so that rotten memory is known before the
// day it is needed.
#pragma once

#include "smp/desk/node_state.h"
#include "smp/memory/slot_verifier.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Scrubber {
 public:
  explicit Scrubber(NodeState& state);
  ~Scrubber();

 private:
  void Schedule();
  void Scrub();

  NodeState& state_;
  SlotVerifier verifier_;
  TimerId timer_ = TimerId::kNone;
};

}  // namespace unreft::smp
