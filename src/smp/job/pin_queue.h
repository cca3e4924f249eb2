// PinQueue: requests for pins that wait until the rules have looked at them, one after the other.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <deque>

#include "base/executor.h"

namespace unreft::smp {

// Single-threaded on its executor.
class PinQueue {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<PinReply>)>;
  struct Request {
    PinRequest request;
    Done done;
  };

  explicit PinQueue(Executor& executor) : executor_(executor) {}
  // Whoever waits is told Unavailable, in a turn of its own: who asks may be going, too.
  ~PinQueue();

  // ResourceExhausted, at once, when too many wait.
  void Add(PinRequest request, Done done);
  // Null when none waits.
  const PinRequest* first() const {
    return requests_.empty() ? nullptr : &requests_.front().request;
  }
  Request TakeFirst();

 private:
  Executor& executor_;
  std::deque<Request> requests_;
};

}  // namespace unreft::smp
