#include "transport/silent_requests.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace unreft {

SilentRequests::SilentRequests(Executor& executor, Duration timeout, size_t most)
    : executor_(executor), timeout_(timeout), most_(most) {}

uint64_t SilentRequests::Add(End end) {
  End oldest;
  uint64_t number = 0;
  bool must_post = false;
  {
    const std::lock_guard lock(mutex_);
    if (requests_.size() >= most_) {
      oldest = std::move(requests_.extract(requests_.begin()).mapped().end);
    }
    number = ++last_number_;
    requests_[number] = {executor_.Now(), std::move(end)};
    must_post = !std::exchange(will_sweep_, true);
  }
  if (oldest) {
    oldest(absl::ResourceExhaustedError(fmt::format(
        "no message came, and {} newer requests wait for theirs, calls_silent_max is {}", most_,
        most_)));
  }
  if (must_post) {
    executor_.Post([self = weak_from_this()] {
      if (const auto alive = self.lock()) alive->Sweep();
    });
  }
  return number;
}

void SilentRequests::Remove(uint64_t number) {
  std::map<uint64_t, Request>::node_type request;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  request = requests_.extract(number);
}

void SilentRequests::Sweep() {
  std::vector<End> over;
  {
    const std::lock_guard lock(mutex_);
    const Time now = executor_.Now();
    while (!requests_.empty() && now - requests_.begin()->second.since >= timeout_) {
      over.push_back(std::move(requests_.extract(requests_.begin()).mapped().end));
    }
    will_sweep_ = !requests_.empty();
    if (will_sweep_) {
      executor_.After(requests_.begin()->second.since + timeout_ - now, [self = weak_from_this()] {
        if (const auto alive = self.lock()) alive->Sweep();
      });
    }
  }
  for (const End& end : over) {
    end(absl::DeadlineExceededError(
        fmt::format("no message came within {} ms",
                    std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count())));
  }
}

}  // namespace unreft
