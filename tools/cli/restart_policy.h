// RestartPolicy: whether and when a process that died is started again. Pure; no clock of its own.
#pragma once

#include <optional>

#include "tools/cli/deadline.h"

namespace unreft::cli {

struct RestartLimits {
  Milliseconds backoff_min{100};  // doubled at each death in a row
  Milliseconds backoff_max{5000};
  Milliseconds stable{10000};  // a life of this length ends the row
  uint32_t deaths_in_a_row_max = 20;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}

  // After a death at the end of a life of that length: how long to wait before the next start, or
  // nothing when the limit is reached.
  std::optional<Milliseconds> NextDelay(Milliseconds lived);

 private:
  const RestartLimits limits_;
  uint32_t deaths_in_a_row_ = 0;
  Milliseconds backoff_{0};
};

}  // namespace unreft::cli
