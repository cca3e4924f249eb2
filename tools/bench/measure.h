// Measure: medians of things that are done in turns, so that all of them see the same machine.
#pragma once

#include <functional>
#include <vector>

namespace unreft::bench {

// Runs all of `bodies` one after the other, `repetitions` times after one warm-up round; returns
// the median seconds of each.
std::vector<double> MedianSeconds(int repetitions,
                                  const std::vector<std::function<void()>>& bodies);

}  // namespace unreft::bench
