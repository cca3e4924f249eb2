// WorkPool: the seam to threads that compute (checksums, coding, populating pages).
#pragma once

#include "base/executor.h"

namespace unreft {

class WorkPool {
 public:
  virtual ~WorkPool() = default;

  // Runs `work` on some thread of the pool, then `done` in a turn of `executor`. Both run exactly
  // once, never inline; `work` touches nothing that an executor's turns touch meanwhile, except
  // what it was given. Tasks start in the order of submission. `executor` outlives the pool.
  // Thread-safe.
  virtual void Submit(Task work, Executor& executor, Task done) = 0;

  // Tasks accepted and not finished yet: callers bound their own share of it. Thread-safe.
  virtual size_t pending() const = 0;
};

}  // namespace unreft
