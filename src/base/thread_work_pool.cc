#include "base/thread_work_pool.h"

#include <pthread.h>

#include <utility>

#include "base/check.h"

namespace unreft {

ThreadWorkPool::ThreadWorkPool(size_t threads) {
  UNREFT_CHECK(threads > 0, "a pool has threads");
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { RunThread(); });
    pthread_setname_np(threads_.back().native_handle(), "unreft-work");
  }
}

ThreadWorkPool::~ThreadWorkPool() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadWorkPool::Submit(Task work, Executor& executor, Task done) {
  {
    std::lock_guard lock(mutex_);
    UNREFT_CHECK(!ending_, "nothing is submitted to a pool that is being destroyed");
    queue_.push_back({std::move(work), &executor, std::move(done)});
  }
  changed_.notify_one();
}

size_t ThreadWorkPool::pending() const {
  std::lock_guard lock(mutex_);
  return queue_.size() + running_;
}

void ThreadWorkPool::RunThread() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    lock.unlock();
    item.work();
    item.work = nullptr;  // what it holds is free before `done` says so
    lock.lock();
    --running_;
    lock.unlock();
    item.executor->Post(std::move(item.done));
    lock.lock();
  }
}

}  // namespace unreft
