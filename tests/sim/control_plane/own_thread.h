// OwnThread: a thread that runs what it is given, one task after the other, while who gives it
// waits. In a process of its own a daemon has its heap to itself; in one thread with a thousand
// others it would search what they have freed. A thread has an arena of its own in glibc's malloc.
// Between two turns of a daemon, ranks train on the processors that it shares with them, and leave
// nothing of its own in their caches: if wanted, a task finds nothing there of the one before.
#pragma once

#include <cstddef>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/executor.h"

namespace unreft::sim {

class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  // Returns when `task` has run and is destroyed, both on the thread.
  void Run(Task task);
  // From now on the processor's second-level cache is filled with other things before each task.
  void EmptyCaches();
  // Of the thread's CPU time, that all tasks have taken.
  double cpu_ms() const { return cpu_ms_; }

 private:
  void Loop();

  Task task_;  // null: the thread ends
  double cpu_ms_ = 0;
  std::vector<std::byte> others_;  // what the caches hold before a task; empty: they are left alone
  std::binary_semaphore given_{0};
  std::binary_semaphore done_{0};
  std::thread thread_;  // last: it uses the others
};

}  // namespace unreft::sim
