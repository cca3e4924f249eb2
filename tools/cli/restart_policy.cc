#include "tools/cli/restart_policy.h"

#include <algorithm>

namespace unreft::cli {

std::optional<Milliseconds> RestartPolicy::NextDelay(Milliseconds lived) {
  if (lived >= limits_.stable) deaths_in_a_row_ = 0;
  if (++deaths_in_a_row_ > limits_.deaths_in_a_row_max) return std::nullopt;
  backoff_ =
      deaths_in_a_row_ == 1 ? limits_.backoff_min : std::min(2 * backoff_, limits_.backoff_max);
  return backoff_;
}

}  // namespace unreft::cli
