// DrainProcess: the seam to the process that writes this node's part of a durable copy
// (`unreftd --role=drain`). It is a process of its own so that a file system that hangs, and code
// that writes files, are never in the daemon that keeps the state.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <string>

namespace unreft::smp {

// Used in turns of the node's executor, and calls back in such turns.
class DrainProcess {
 public:
  virtual ~DrainProcess() = default;

  // Starts it with an order, a serialized CopyPartRequest. `on_line` hears each line that it
  // prints; `on_end`, once and after all lines, that it has ended. FailedPrecondition while one
  // runs.
  virtual absl::Status Start(const std::string& order,
                             absl::AnyInvocable<void(const std::string& line)> on_line,
                             absl::AnyInvocable<void()> on_end) = 0;

  // Asks it to clean up and end, which it may take its time for; ignored while none runs.
  virtual void Stop() = 0;
};

}  // namespace unreft::smp
