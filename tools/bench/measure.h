// Measure: medians of things that are done in turns, so that all of them see the same machine.
#pragma once

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

namespace unreft::bench {

// What is measured, and what it needs done before and after that is not.
struct Body {
  template <std::invocable Timed>
  Body(Timed timed)  // NOLINT: most are nothing else
      : timed(std::move(timed)) {}
  Body(std::function<void()> before, std::function<void()> timed, std::function<void()> after)
      : before(std::move(before)), timed(std::move(timed)), after(std::move(after)) {}

  std::function<void()> before = [] {};
  std::function<void()> timed;
  std::function<void()> after = [] {};
};

// Of the same repetitions: a clock's, and what the calling thread was on a processor for, which
// does not count how long others kept it from one.
struct Seconds {
  double wall = 0;
  double cpu = 0;
};

// Runs all of `bodies` one after the other, `repetitions` times after one warm-up round; returns
// the medians of each.
std::vector<Seconds> MedianSeconds(int repetitions, const std::vector<Body>& bodies);

}  // namespace unreft::bench
