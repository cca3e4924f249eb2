// LivesBefore: trainers that an earlier process of this daemon served and that may live on, by
// their control pages, each of which is removed at its life's end. One that has no session may
// never get one: an earlier attempt's.
#pragma once

#include <absl/functional/any_invocable.h>

#include <string>
#include <vector>

#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class LivesBefore {
 public:
  // Fills `state.lives_before` and keeps it true. `on_end`: one of them has ended.
  LivesBefore(NodeState& state, absl::AnyInvocable<void()> on_end);
  ~LivesBefore();
  LivesBefore(const LivesBefore&) = delete;
  LivesBefore& operator=(const LivesBefore&) = delete;

 private:
  void RemoveAtEnd(ProcessLife life, std::string control_page);

  NodeState& state_;
  absl::AnyInvocable<void()> on_end_;
  std::vector<WatchId> watches_;
};

}  // namespace unreft::smp
