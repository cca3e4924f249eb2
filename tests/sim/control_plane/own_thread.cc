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

// Written, so that the processor holds the lines for nobody else.
void Touch(std::vector<std::byte>& bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes.size(); at += kLine) {
    volatile std::byte& line = bytes[at];
    line = std::byte{1};
  }
}

}  // namespace

OwnThread::OwnThread() : thread_([this] { Loop(); }) {}

OwnThread::~OwnThread() {
  Run(nullptr);
  thread_.join();
}

void OwnThread::Run(Task task) {
  task_ = std::move(task);
  given_.release();
  done_.acquire();
}

void OwnThread::EmptyCaches() {
  constexpr size_t kAtLeast = size_t{2} << 20;
  const auto size = static_cast<size_t>(std::max<long>(sysconf(_SC_LEVEL2_CACHE_SIZE), 0));
  others_.resize(2 * std::max(size, kAtLeast));
}

void OwnThread::Loop() {
  for (bool runs = true; runs; done_.release()) {
    given_.acquire();
    runs = task_ != nullptr;
    if (!runs) continue;
    Touch(others_);
    const double before = ThreadCpuMs();
    task_();
    task_ = nullptr;
    cpu_ms_ += ThreadCpuMs() - before;
  }
}

}  // namespace unreft::sim
