// Deadline: a moment by which a wait ends. A value.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>

namespace unreft::cli {

using Milliseconds = std::chrono::milliseconds;

class Deadline {
 public:
  // What is further away than anybody waits is as far away as that.
  explicit Deadline(Milliseconds from_now) : at_(Clock::now() + Bounded(from_now)) {}

  bool passed() const { return Clock::now() >= at_; }
  Milliseconds left() const {
    return std::max(Milliseconds(0), std::chrono::ceil<Milliseconds>(at_ - Clock::now()));
  }
  // For poll(2).
  int left_ms() const {
    return static_cast<int>(std::min<Milliseconds::rep>(left().count(), INT_MAX));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Milliseconds kLongest = std::chrono::hours(24 * 365 * 10);
  static Milliseconds Bounded(Milliseconds wait) {
    return wait.count() < 0 || wait > kLongest ? kLongest : wait;  // below 0: it was larger yet
  }
  Clock::time_point at_;
};

}  // namespace unreft::cli
