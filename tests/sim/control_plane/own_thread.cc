#include "tests/sim/control_plane/own_thread.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/check.h"

namespace unreft::sim {
namespace {

double ThreadCpuMs() {
  timespec now{};
  UNREFT_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, "a thread has a clock");
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

constexpr size_t kLine = 64;

// What the processor says of a cache; at least so many bytes, as where it says nothing.
size_t CacheSize(int name, size_t at_least) {
  return std::max(static_cast<size_t>(std::max<long>(sysconf(name), 0)), at_least);
}

}  // namespace

OwnThread::OwnThread() : thread_([this] { Loop(); }) {}

OwnThread::~OwnThread() {
  Hand(nullptr);
  thread_.join();
}

void OwnThread::Run(Task task) {
  Hand([this, &task] {
    const double before = ThreadCpuMs();
    std::exchange(task, nullptr)();
    cpu_ms_ += ThreadCpuMs() - before;
  });
}

// Each line is written, so that the processor holds it for nobody else.
void OwnThread::LetOthersUse(size_t bytes) {
  if (others_.empty()) others_.resize(2 * CacheSize(_SC_LEVEL3_CACHE_SIZE, size_t{32} << 20));
  const size_t fewest = 2 * CacheSize(_SC_LEVEL2_CACHE_SIZE, size_t{2} << 20);
  const size_t used = std::clamp(bytes, std::min(fewest, others_.size()), others_.size());
  Hand([this, used] {
    for (size_t i = 0; i < used; i += kLine) {
      volatile std::byte& line = others_[next_];
      line = std::byte{1};
      next_ = next_ + kLine < others_.size() ? next_ + kLine : 0;
    }
  });
}

void OwnThread::Hand(Task task) {
  task_ = std::move(task);
  given_.release();
  done_.acquire();
}

void OwnThread::Loop() {
  for (bool runs = true; runs; done_.release()) {
    given_.acquire();
    runs = task_ != nullptr;
    if (runs) std::exchange(task_, nullptr)();
  }
}

}  // namespace unreft::sim
