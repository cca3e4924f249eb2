#include "tests/fakes/sim_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace unreft {
namespace {

constexpr Duration kInstant{1};  // nothing happens at once, so no loop of posts stops the clock

}  // namespace

SimScheduler::SimScheduler(uint64_t seed, SimOptions options) : options_(options), random_(seed) {}

SimScheduler::~SimScheduler() {
  UNREFT_CHECK(executors_alive_ == 0, "executors are destroyed before their scheduler");
}

std::unique_ptr<SimExecutor> SimScheduler::NewExecutor(std::string name, uint64_t host) {
  ++executors_alive_;
  const Duration origin = RandomDelay(std::chrono::hours(1));
  return std::unique_ptr<SimExecutor>(
      new SimExecutor(*this, ++last_executor_, std::move(name), host, origin));
}

Duration SimScheduler::RandomDelay(Duration max) {
  return Duration(random_.Below(static_cast<uint64_t>(max.count()) + 1));
}

void SimScheduler::RunBy(uint64_t host, Runner runner) { runners_[host] = std::move(runner); }

bool SimScheduler::RunOne() {
  const auto next = Next();
  if (next == events_.end()) return false;
  Run(next);
  return true;
}

void SimScheduler::RunFor(Duration duration) {
  const Duration end = now_ + duration;
  for (auto next = Next(); next != events_.end() && next->first.time <= end; next = Next()) {
    Run(next);
  }
  now_ = std::max(now_, end);
}

bool SimScheduler::RunUntil(absl::FunctionRef<bool()> condition, size_t events_max) {
  for (size_t i = 0; i < events_max; ++i) {
    if (condition()) return true;
    if (!RunOne()) return false;
  }
  return condition();
}

SimScheduler::Key SimScheduler::Add(Duration time, Event event) {
  const Key key{.time = time, .draw = random_.Next(), .number = ++last_event_};
  events_.emplace(key, std::move(event));
  return key;
}

SimScheduler::Events::iterator SimScheduler::Next() {
  while (!events_.empty() && events_.begin()->second.owner->suspended()) {
    held_.insert(events_.extract(events_.begin()));
  }
  return events_.begin();
}

void SimScheduler::Run(Events::iterator next) {
  UNREFT_CHECK(!running_, "an event may not run the scheduler");
  running_ = true;
  auto node = events_.extract(next);
  Event& event = node.mapped();
  now_ = std::max(now_, node.key().time);  // a suspended process's events lie in the past
  digest_ = (digest_ ^ event.owner->number_) * 0x100000001b3 + static_cast<uint64_t>(now_.count());
  ++events_run_;
  last_host_ = event.owner->host_;
  if (event.timer != TimerId::kNone) event.owner->timers_.erase(event.timer);
  current_ = event.in_turn ? event.owner : nullptr;
  if (const auto runner = runners_.find(last_host_); runner != runners_.end()) {
    runner->second(std::exchange(event.task, nullptr));
  } else {
    event.task();
    event.task = nullptr;  // what it owns dies in the turn, as on a real executor
  }
  current_ = nullptr;
  running_ = false;
}

SimExecutor::SimExecutor(SimScheduler& scheduler, uint64_t number, std::string name, uint64_t host,
                         Duration origin)
    : scheduler_(scheduler),
      number_(number),
      name_(std::move(name)),
      host_(host),
      origin_(origin) {}

SimExecutor::~SimExecutor() {
  Kill();
  --scheduler_.executors_alive_;
}

void SimExecutor::Post(Task task) {
  if (killed_) return;
  const uint64_t poster = scheduler_.current_ == nullptr ? 0 : scheduler_.current_->number_;
  Duration& last = last_post_[poster];
  last = std::max(last,
                  scheduler_.now() + scheduler_.RandomDelay(scheduler_.options_.post_delay_max)) +
         kInstant;
  Schedule(last, true, TimerId::kNone, std::move(task));
}

TimerId SimExecutor::After(Duration delay, Task task) {
  UNREFT_CHECK(InTurn(), "After is for turns of the executor");
  const TimerId timer{++last_timer_};
  if (killed_) return timer;
  const Duration lateness = scheduler_.RandomDelay(scheduler_.options_.timer_lateness_max);
  delay = std::clamp(delay, Duration::zero(), Duration::max() / 2);
  timers_[timer] =
      Schedule(scheduler_.now() + delay + lateness + kInstant, true, timer, std::move(task));
  return timer;
}

void SimExecutor::Cancel(TimerId timer) {
  UNREFT_CHECK(InTurn() || killed_, "Cancel is for turns of the executor");
  const auto found = timers_.find(timer);
  if (found == timers_.end()) return;
  auto node = scheduler_.events_.extract(found->second);
  if (!node) node = scheduler_.held_.extract(found->second);
  timers_.erase(found);
}

Time SimExecutor::Now() const { return Time(origin_ + scheduler_.now()); }

bool SimExecutor::InTurn() const { return scheduler_.current_ == this; }

void SimExecutor::Kill() {
  if (std::exchange(killed_, true)) return;
  timers_.clear();
  // Out of the queue before any is destroyed: a task may own what posts, cancels or closes.
  std::vector<Task> dropped;
  for (SimScheduler::Events* events : {&scheduler_.events_, &scheduler_.held_}) {
    for (auto it = events->begin(); it != events->end();) {
      if (it->second.owner != this) {
        ++it;
        continue;
      }
      dropped.push_back(std::move(it->second.task));
      it = events->erase(it);
    }
  }
  for (Task& task : std::exchange(at_kill_, {})) task();
}

void SimExecutor::Suspend() { suspended_ = true; }

void SimExecutor::Resume() {
  suspended_ = false;
  SimScheduler::Events& held = scheduler_.held_;
  for (auto it = held.begin(); it != held.end();) {
    const auto next = std::next(it);
    if (it->second.owner == this) scheduler_.events_.insert(held.extract(it));
    it = next;
  }
}

void SimExecutor::Deliver(Duration delay, Task task) {
  Schedule(scheduler_.now() + delay + kInstant, true, TimerId::kNone, std::move(task));
}

void SimExecutor::RunOnThread(Duration delay, Task task) {
  Schedule(scheduler_.now() + delay + kInstant, false, TimerId::kNone, std::move(task));
}

SimScheduler::Key SimExecutor::Schedule(Duration time, bool in_turn, TimerId timer, Task task) {
  if (killed_) return {};
  return scheduler_.Add(
      time, {.owner = this, .in_turn = in_turn, .timer = timer, .task = std::move(task)});
}

}  // namespace unreft
