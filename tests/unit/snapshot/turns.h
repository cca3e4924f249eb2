// Runs a piece of a test in a turn of another thread's executor.
#pragma once

#include <future>

#include "base/executor.h"

namespace unreft::snapshot {

// Returns when `body` has run; not from a turn of that executor.
template <typename Body>
void RunInTurn(Executor& executor, Body body) {
  std::promise<void> done;
  executor.Post([&] {
    body();
    done.set_value();
  });
  done.get_future().get();
}

}  // namespace unreft::snapshot
