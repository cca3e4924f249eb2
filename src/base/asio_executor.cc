#include "base/asio_executor.h"

#include <pthread.h>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"

namespace unreft {

// Marks the calling thread as the one that runs turns, for its own lifetime.
class AsioExecutor::Turns {
 public:
  explicit Turns(AsioExecutor& executor) : executor_(executor) {
    const auto before = executor_.thread_.exchange(std::this_thread::get_id());
    UNREFT_CHECK(before == std::thread::id(), "two threads run the turns of one executor");
  }
  ~Turns() { executor_.thread_.store(std::thread::id()); }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

 private:
  AsioExecutor& executor_;
};

// One thread runs the context, but several may post to it: hence no "unsafe" hint.
AsioExecutor::AsioExecutor(OnThrow on_throw)
    : on_throw_(std::move(on_throw)), context_(1), keep_running_(context_.get_executor()) {
  // The first timer makes the descriptors that the context waits with: now, and not in a turn in
  // which they may have run out.
  boost::asio::steady_timer first(context_);
}

AsioExecutor::~AsioExecutor() {
  Stop();
  // While the context is there; out of the table first, since a task may own what cancels timers.
  std::exchange(timers_, {}).clear();
}

void AsioExecutor::Run() {
  Turns turns(*this);
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception& error) {
      if (on_throw_ == nullptr) throw;
      on_throw_(error.what());
    }
  }
}

bool AsioExecutor::RunOneFor(Duration wait) {
  Turns turns(*this);
  return context_.run_one_for(wait) > 0;
}

void AsioExecutor::Stop() {
  stopped_.store(true);
  context_.stop();
}

void AsioExecutor::Post(Task task) {
  if (stopped_.load()) return;
  boost::asio::post(context_, std::move(task));
}

TimerId AsioExecutor::After(Duration delay, Task task) {
  UNREFT_CHECK(InTurn(), "After is for turns of the executor");
  const TimerId id{++last_timer_};
  // A cancelled timer is found missing from the table, whatever its handler was told.
  if (delay <= Duration{}) {
    timers_.emplace(id, Timer{.clock = std::nullopt, .task = std::move(task)});
    Post([this, id] { Expire(id); });  // no clock has to be set for it
    return id;
  }
  Timer timer{.clock = boost::asio::steady_timer(context_, delay), .task = std::move(task)};
  timer.clock->async_wait([this, id](const boost::system::error_code&) { Expire(id); });
  timers_.emplace(id, std::move(timer));
  return id;
}

void AsioExecutor::Expire(TimerId timer) {
  auto node = timers_.extract(timer);
  if (node) node.mapped().task();
}

void AsioExecutor::Cancel(TimerId timer) {
  UNREFT_CHECK(InTurn() || stopped_.load(), "Cancel is for turns of the executor");
  timers_.extract(timer);  // the task dies with the node, when the table is whole again
}

Time AsioExecutor::Now() const { return std::chrono::steady_clock::now(); }

bool AsioExecutor::InTurn() const { return thread_.load() == std::this_thread::get_id(); }

// A turn that finds no memory ends there, and whoever waits for its answer learns that none comes:
// in the process of somebody else, which goes on.
ExecutorThread::ExecutorThread(const std::string& name)
    : thread_([this] {
        while (true) {
          try {
            return executor_.Run();
          } catch (const std::bad_alloc&) {
            continue;
          }
        }
      }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

ExecutorThread::~ExecutorThread() { Join(); }

void ExecutorThread::Join() {
  executor_.Stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace unreft
