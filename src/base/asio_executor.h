// AsioExecutor: the executor of a real process, on the thread that calls Run.
//
// Its io_context is for the other real back ends of base: their handlers are turns too. What uses
// an executor is destroyed before it, in a turn or after Run has returned.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/executor.h"

namespace unreft {

class AsioExecutor final : public Executor {
 public:
  // `on_throw` is told what a turn threw, after which the next turn runs; null: Run throws it.
  using OnThrow = std::function<void(const char* what)>;
  explicit AsioExecutor(OnThrow on_throw = nullptr);
  // Destroys what has not run.
  ~AsioExecutor() override;
  AsioExecutor(const AsioExecutor&) = delete;
  AsioExecutor& operator=(const AsioExecutor&) = delete;

  // Runs turns on the calling thread until Stop. One thread at a time.
  void Run();

  // Like Run, but returns after one turn, true, or when none came within `wait`, false: for
  // programs that do something between turns.
  bool RunOneFor(Duration wait);

  // Lets Run return after the turn in progress; no turn begins any more. Thread-safe.
  void Stop();

  boost::asio::io_context& context() { return context_; }

  void Post(Task task) override;
  TimerId After(Duration delay, Task task) override;
  void Cancel(TimerId timer) override;
  Time Now() const override;
  bool InTurn() const override;

 private:
  struct Timer {
    std::optional<boost::asio::steady_timer> clock;  // none: it is due
    Task task;
  };
  class Turns;

  void Expire(TimerId timer);

  const OnThrow on_throw_;
  std::atomic<std::thread::id> thread_;  // that runs turns now; none: a default id
  std::atomic<bool> stopped_ = false;
  // Used only in turns.
  std::map<TimerId, Timer> timers_;
  uint64_t last_timer_ = 0;
  // Last, since the tasks that die with it may still reach for the members above.
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> keep_running_;
};

// An AsioExecutor and the thread that runs it.
class ExecutorThread {
 public:
  // `name` is the thread's as the kernel shows it: 15 characters at most.
  explicit ExecutorThread(const std::string& name);
  // Stops the executor after the turn in progress and joins.
  ~ExecutorThread();
  ExecutorThread(const ExecutorThread&) = delete;
  ExecutorThread& operator=(const ExecutorThread&) = delete;

  AsioExecutor& executor() { return executor_; }

  // Stops and joins now, so that what lives on the executor can be destroyed by the caller.
  // Idempotent; not from the thread itself.
  void Join();

 private:
  AsioExecutor executor_;
  std::thread thread_;
};

}  // namespace unreft
