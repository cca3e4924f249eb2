// ThreadWorkPool: a fixed number of threads that take the oldest task first.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/work_pool.h"

namespace unreft {

class ThreadWorkPool final : public WorkPool {
 public:
  explicit ThreadWorkPool(size_t threads);
  // Finishes what was accepted, posts its `done`s, then joins.
  ~ThreadWorkPool() override;
  ThreadWorkPool(const ThreadWorkPool&) = delete;
  ThreadWorkPool& operator=(const ThreadWorkPool&) = delete;

  void Submit(Task work, Executor& executor, Task done) override;
  size_t pending() const override;

 private:
  struct Item {
    Task work;
    Executor* executor;
    Task done;
  };

  void RunThread();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Item> queue_;
  size_t running_ = 0;
  bool ending_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace unreft
