#include "base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

namespace unreft {
namespace {

constexpr int kNone = -1;
constexpr size_t kListedMax = 256;

// Never destroyed: a thread may fork while the process ends.
struct Listed {
  Listed() {
    for (std::atomic<int>& fd : fds) fd = kNone;
  }
  // A plain mutex: the child's one thread is the one that locked it, and may unlock it.
  std::mutex forks;
  std::array<std::atomic<int>, kListedMax> fds;
};

Listed* the_listed = nullptr;

void BeforeFork() { the_listed->forks.lock(); }

void InParent() { the_listed->forks.unlock(); }

// Only what a signal's handler may do, too.
void InChild() {
  for (std::atomic<int>& fd : the_listed->fds) {
    const int open = fd.exchange(kNone);
    if (open != kNone) close(open);
  }
  the_listed->forks.unlock();
}

Listed& TheListed() {
  static Listed* const listed = [] {
    the_listed = new Listed;  // NOLINT: see above
    pthread_atfork(&BeforeFork, &InParent, &InChild);
    return the_listed;
  }();
  return *listed;
}

}  // namespace

ForkGuard::ForkGuard() { TheListed().forks.lock(); }

ForkGuard::~ForkGuard() { TheListed().forks.unlock(); }

ClosedInChildren::ClosedInChildren(int fd) {
  auto& fds = TheListed().fds;
  for (size_t i = 0; i < fds.size() && place_ < 0; ++i) {
    int free = kNone;
    if (fds[i].compare_exchange_strong(free, fd)) place_ = static_cast<int>(i);
  }
}

ClosedInChildren::~ClosedInChildren() {
  if (place_ >= 0) TheListed().fds[static_cast<size_t>(place_)] = kNone;
}

}  // namespace unreft
