// SimScheduler and SimExecutor: many processes in one thread, in virtual time, on one seed.
//
// Each simulated process is a SimExecutor; all are made by one SimScheduler, which owns the clock,
// the queue of events and the Random. Every event lies at its own point in virtual time: a posted
// task after a short random delay, a timer a little late. So tasks of one poster keep their order,
// and everything else is interleaved as the seed says. The same seed and the same program give the
// same run; digest() proves it.
//
// Single-threaded. Executors are destroyed before their scheduler.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/functional/function_ref.h>

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/random.h"

namespace unreft {

class SimExecutor;

struct SimOptions {
  Duration post_delay_max = std::chrono::microseconds(20);
  Duration timer_lateness_max = std::chrono::microseconds(200);
};

class SimScheduler {
 public:
  explicit SimScheduler(uint64_t seed, SimOptions options = {});
  ~SimScheduler();
  SimScheduler(const SimScheduler&) = delete;
  SimScheduler& operator=(const SimScheduler&) = delete;

  // A new process; `name` is for messages only, `host` is where it runs: see last_host().
  std::unique_ptr<SimExecutor> NewExecutor(std::string name, uint64_t host = 0);

  // Events of `host` are run by `runner` from now on, which calls the task that it is given, once,
  // and destroys it before it returns: so that they can be measured, or have a thread of their own.
  using Runner = absl::AnyInvocable<void(Task)>;
  void RunBy(uint64_t host, Runner runner);

  // Virtual time since the beginning.
  Duration now() const { return now_; }
  Random& random() { return random_; }
  // Uniform in [0, max].
  Duration RandomDelay(Duration max);

  // Runs the next event, moving the clock to it; false when there is none.
  bool RunOne();
  // Runs every event of the next `duration`, then sets the clock to its end.
  void RunFor(Duration duration);
  // Runs events until `condition` holds, asked before each one; false when `events_max` have run or
  // none is left and it does not.
  bool RunUntil(absl::FunctionRef<bool()> condition, size_t events_max);

  size_t events_run() const { return events_run_; }
  // Where the last event ran, so that who looks on need not look everywhere.
  uint64_t last_host() const { return last_host_; }
  // Of what has run: which process at which time. Equal for equal runs.
  uint64_t digest() const { return digest_; }

 private:
  friend class SimExecutor;

  // Events are ordered by time; two at the same time by a number drawn for each.
  struct Key {
    Duration time;
    uint64_t draw;
    uint64_t number;  // unique
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Event {
    SimExecutor* owner;
    bool in_turn;
    TimerId timer;
    Task task;
  };

  // Nodes come from a pool: a run adds and removes some hundred thousand.
  using Events = std::pmr::map<Key, Event>;

  Key Add(Duration time, Event event);
  // The first event whose process is not suspended; those before it are held.
  Events::iterator Next();
  void Run(Events::iterator next);

  const SimOptions options_;
  std::map<uint64_t, Runner> runners_;
  Random random_;
  Duration now_{0};
  std::pmr::unsynchronized_pool_resource nodes_;
  Events events_{&nodes_};
  Events held_{&nodes_};  // due, of suspended processes
  uint64_t last_event_ = 0;
  uint64_t last_executor_ = 0;
  uint64_t executors_alive_ = 0;
  const SimExecutor* current_ = nullptr;  // in a turn of which; null outside turns
  bool running_ = false;                  // an event
  size_t events_run_ = 0;
  uint64_t digest_ = 0;
  uint64_t last_host_ = 0;
};

// One process. Its clock has an origin of its own: comparing two processes' times is a bug.
class SimExecutor final : public Executor {
 public:
  ~SimExecutor() override;
  SimExecutor(const SimExecutor&) = delete;
  SimExecutor& operator=(const SimExecutor&) = delete;

  void Post(Task task) override;
  TimerId After(Duration delay, Task task) override;
  void Cancel(TimerId timer) override;
  Time Now() const override;
  bool InTurn() const override;

  // kill -9: drops every task and timer without running them, and all that is posted later. What
  // the process owned is destroyed by the test, afterwards; it reaches nobody any more.
  void Kill();
  bool killed() const { return killed_; }
  // Calls `task` within Kill or destruction, outside any turn; for fakes that are the kernel's
  // part.
  void AtKill(Task task) { at_kill_.push_back(std::move(task)); }

  // kill -STOP: nothing of this process runs until Resume; its events are then due at once.
  void Suspend();
  void Resume();
  bool suspended() const { return suspended_; }

  // Runs `task` in a turn `delay` from now, from anywhere: the arrival of something from outside.
  void Deliver(Duration delay, Task task);
  // Runs `task` `delay` from now outside turns, as another thread of this process would.
  void RunOnThread(Duration delay, Task task);

  const std::string& name() const { return name_; }
  SimScheduler& scheduler() { return scheduler_; }

 private:
  friend class SimScheduler;
  SimExecutor(SimScheduler& scheduler, uint64_t number, std::string name, uint64_t host,
              Duration origin);

  SimScheduler::Key Schedule(Duration time, bool in_turn, TimerId timer, Task task);

  SimScheduler& scheduler_;
  const uint64_t number_;
  const std::string name_;
  const uint64_t host_;
  const Duration origin_;
  bool killed_ = false;
  bool suspended_ = false;
  std::vector<Task> at_kill_;
  std::map<TimerId, SimScheduler::Key> timers_;
  uint64_t last_timer_ = 0;
  // When the last task of each poster is due, by the number of the poster's executor.
  std::map<uint64_t, Duration> last_post_;
};

}  // namespace unreft
