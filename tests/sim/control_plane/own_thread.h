// OwnThread: a thread that runs what it is given, one task after the other, while who gives it
// waits. In a process of its own a daemon has its heap to itself; in one thread with a thousand
// others it would search what they have freed. A thread has an arena of its own in glibc's malloc.
#pragma once

#include <semaphore>
#include <thread>

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
  // Of the thread's CPU time, that all tasks have taken.
  double cpu_ms() const { return cpu_ms_; }

 private:
  void Loop();

  Task task_;  // null: the thread ends
  double cpu_ms_ = 0;
  std::binary_semaphore given_{0};
  std::binary_semaphore done_{0};
  std::thread thread_;  // last: it uses the others
};

}  // namespace unreft::sim
