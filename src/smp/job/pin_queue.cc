#include "smp/job/pin_queue.h"

#include <fmt/format.h>

#include <utility>

namespace unreft::smp {
namespace {

constexpr size_t kWaitingMax = 64;

}  // namespace

PinQueue::~PinQueue() {
  for (Request& waiting : requests_) {
    executor_.Post([done = std::move(waiting.done)]() mutable {
      done(absl::UnavailableError("the leader has changed; try again"));
    });
  }
}

void PinQueue::Add(PinRequest request, Done done) {
  if (requests_.size() >= kWaitingMax) {
    return done(absl::ResourceExhaustedError(fmt::format(
        "{} requests for pins wait, the limit is {}; try again", requests_.size(), kWaitingMax)));
  }
  requests_.push_back({std::move(request), std::move(done)});
}

PinQueue::Request PinQueue::TakeFirst() {
  Request first = std::move(requests_.front());
  requests_.pop_front();
  return first;
}

}  // namespace unreft::smp
