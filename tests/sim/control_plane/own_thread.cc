#include "tests/sim/control_plane/own_thread.h"

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

void OwnThread::Loop() {
  for (bool runs = true; runs; done_.release()) {
    given_.acquire();
    runs = task_ != nullptr;
    if (!runs) continue;
    const double before = ThreadCpuMs();
    task_();
    task_ = nullptr;
    cpu_ms_ += ThreadCpuMs() - before;
  }
}

}  // namespace unreft::sim
